// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// dropped sends frames over a link and returns which of them it lost.
func dropped(t *testing.T, c *cluster.Config, h cluster.Host, faulty bool) (lost []int) {
	t.Helper()
	l, err := openLink(Env{Config: c}, h, faulty)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path, err := l.Path(t.Context(), wire.Endpoint{IP: c.Server.Address, Port: c.Port})
	if err != nil {
		t.Fatal(err)
	}
	drops := func() uint64 { return l.Stats().Dropped }
	for i := range 64 {
		b, ok := l.Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		before := drops()
		if n, err := l.Send([]link.Frame{{Buf: b, Len: wire.HeaderLen, To: path}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		l.Free(b)
		if drops() != before {
			lost = append(lost, i)
		}
	}
	return lost
}

// Every worker has faults of its own, and the same ones in every run; a server's link
// has none.
func TestFaultsOfWorkers(t *testing.T) {
	c := newCluster(t, 2)
	first, second := c.Workers[0].Host, c.Workers[1].Host
	if lost := dropped(t, c, first, true); lost != nil {
		t.Errorf("without faults, frames %v are lost", lost)
	}
	c.Faults = cluster.Faults{Loss: 0.5, Seed: 3}
	a := dropped(t, c, first, true)
	if len(a) < 10 || len(a) > 54 {
		t.Errorf("%d of 64 frames are lost", len(a))
	}
	if again := dropped(t, c, first, true); !slices.Equal(a, again) {
		t.Errorf("frames %v are lost, and %v in a second run", a, again)
	}
	if b := dropped(t, c, second, true); slices.Equal(a, b) {
		t.Errorf("both workers lose frames %v", a)
	}
	if lost := dropped(t, c, c.Server.Host, false); lost != nil {
		t.Errorf("the server's link loses frames %v", lost)
	}
	c.Faults.Seed = 4
	if b := dropped(t, c, first, true); slices.Equal(a, b) {
		t.Errorf("with either seed, frames %v are lost", a)
	}
	c.Faults.Loss = 2
	for range 2 { // the first leaves no socket open
		if _, err := openLink(Env{Config: c}, first, true); err == nil || strings.Contains(err.Error(), "in use") {
			t.Errorf("a probability of 2: %v", err)
		}
	}
}

// The faults of an earlier run can be had again: their seed is made of the configured one
// and of the address as it always was.
func TestFaultSeed(t *testing.T) {
	for worker, want := range map[string]uint64{"10.0.0.1": 3_068_474, "10.0.0.2": 3_068_475, "10.1.0.1": 3_069_435} {
		if got := faultSeed(3, netip.MustParseAddr(worker)); got != want {
			t.Errorf("%s has seed %d, want %d", worker, got, want)
		}
	}
}

// Each kind of fault reaches the link.
func TestKindsOfFaults(t *testing.T) {
	c := newCluster(t, 2)
	for name, f := range map[string]cluster.Faults{"loss": {Loss: 0.3}, "duplicate": {Duplicate: 0.3}, "reorder": {Reorder: 0.3}} {
		c.Faults = f
		l, err := openLink(Env{Config: c}, c.Workers[0].Host, true)
		if err != nil {
			t.Fatal(err)
		}
		path, err := l.Path(t.Context(), wire.Endpoint{IP: c.Server.Address, Port: c.Port})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			b, ok := l.Alloc()
			if !ok {
				t.Fatal("no buffer")
			}
			if _, err := l.Send([]link.Frame{{Buf: b, Len: wire.HeaderLen, To: path}}); err != nil {
				t.Fatal(err)
			}
			l.Free(b)
		}
		s := l.Stats()
		if got := [3]bool{s.Dropped > 0, s.Duplicated > 0, s.Reordered > 0}; got != [3]bool{name == "loss", name == "duplicate", name == "reorder"} {
			t.Errorf("%s: %+v", name, s)
		}
		l.Close()
	}
}

// A peer that does not end its calls keeps a control service for a moment only.
func TestStopServerCutsOff(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := access.NewServer(access.Security{})
	begun, returned := make(chan struct{}), make(chan struct{})
	pb.RegisterParameterServerServer(s, &endless{begun: begun, returned: returned})
	go func() { _ = s.Serve(listener) }()
	conn, err := access.Dial(t.Context(), access.ServerOf(1), listener.Addr().(*net.TCPAddr).AddrPort(), access.Security{}, eventLimit, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := pb.NewParameterServerClient(conn).Stats(context.Background(), &pb.StatsRequest{})
		failed <- err
	}()
	<-begun
	cancelled, start := false, time.Now()
	stopServer(s, func() { cancelled = true })
	if took := time.Since(start); took < farewell || !cancelled {
		t.Errorf("it stops after %v, cancelled %v", took, cancelled)
	}
	select {
	case <-returned:
	default:
		t.Error("a call is still under way")
	}
	if err := <-failed; err == nil {
		t.Error("the call that was cut off succeeds")
	}
}

// endless is a service whose calls last until they are cut off.
type endless struct {
	pb.UnimplementedParameterServerServer
	begun, returned chan struct{}
}

func (e *endless) Stats(ctx context.Context, _ *pb.StatsRequest) (*pb.ServerStats, error) {
	close(e.begun)
	<-ctx.Done()
	close(e.returned)
	return nil, ctx.Err()
}
