// SPDX-License-Identifier: Apache-2.0

package p4_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"
	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/wire"
)

// said collects a daemon's log.
type said struct {
	mu   sync.Mutex
	text []byte
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}

// p4Bed is a daemon with a P4 switch, and a client of it.
type p4Bed struct {
	*testing.T
	config *cluster.Config
	sw     *p4.Switch
	stop   func() // the switch's P4Runtime server
	ended  chan error
	said   said
	client pb.AggregatorClient
}

var quiet = slog.New(slog.DiscardHandler)

// freePort returns a free TCP port.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.4.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// newP4Config returns a configuration whose switch listens at a Unix socket.
func newP4Config(t *testing.T) (c *cluster.Config, sw *p4.Switch, stop func()) {
	t.Helper()
	address := netip.MustParseAddr("127.77.4.1")
	c = &cluster.Config{Backend: cluster.BackendAFXDP, Switch: cluster.Switch{Address: address, Control: netip.AddrPortFrom(address, freePort(t))}}
	path := filepath.Join(t.TempDir(), "p4runtime")
	c.Switch.Plane = cluster.PlaneP4
	c.Switch.P4 = cluster.P4{Runtime: "unix:" + path, Ports: []uint32{1, 2}}
	c.SetDefaults()
	sw = p4.NewSwitch()
	return c, sw, serveP4(t, c, sw)
}

func serveP4(t *testing.T, c *cluster.Config, sw *p4.Switch) (stop func()) {
	t.Helper()
	stop, err := sw.Serve(strings.TrimPrefix(c.Switch.P4.Runtime, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return stop
}

func startP4(t *testing.T) *p4Bed { return startP4With(t, func(*cluster.Config) {}) }

// startP4With starts a switch and its daemon, with a change to the configuration.
func startP4With(t *testing.T, change func(*cluster.Config)) *p4Bed {
	t.Helper()
	b := &p4Bed{T: t, ended: make(chan error, 1)}
	b.config, b.sw, b.stop = newP4Config(t)
	change(b.config)
	ctx, cancel := context.WithCancel(context.Background())
	ready, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		b.ended <- node.RunSwitch(ctx, node.Env{Config: b.config, Log: slog.New(slog.NewTextHandler(&b.said, nil)), Ready: func() { close(ready) }})
	}()
	t.Cleanup(func() { cancel(); <-over })
	select {
	case <-ready:
	case err := <-b.ended:
		t.Fatal(err)
	}
	conn, err := access.Dial(t.Context(), access.TheSwitch(), b.config.Switch.Control, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	b.client = pb.NewAggregatorClient(conn)
	return b
}

// spec specifies a job that a P4 switch supports.
func (b *p4Bed) spec(id uint32) *pb.JobSpec {
	return &pb.JobSpec{
		Job: id, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: 100, HotSet: []byte("hot"), Senders: 1,
	}
}

// create creates a job that lasts until the test ends.
func (b *p4Bed) create(id uint32) *control.Owned {
	b.Helper()
	job, err := control.CreateJob(b.Context(), b.client, b.spec(id), time.Minute, quiet)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	if err := job.Hold(ctx, func(error) {}); err != nil {
		b.Fatal(err)
	}
	return job
}

// join admits a host to job 7.
func (b *p4Bed) join(host wire.Endpoint) *pb.Admission {
	b.Helper()
	stream, err := b.client.Join(b.Context(), &pb.JoinRequest{Job: 7, Sender: 1, Mac: host.MAC[:], Ip: host.IP.AsSlice(), HotSet: []byte("hot")})
	if err != nil {
		b.Fatal(err)
	}
	a, err := stream.Recv()
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// push sends a frame of 1s for the first rows of all lanes, and returns the type of
// the answer.
func (b *p4Bed) push(job *control.Owned, host wire.Endpoint, a *pb.Admission, seq uint32) wire.Type {
	b.Helper()
	c := b.config
	host.Port = c.Port
	e, err := wire.NewEnvelope(host, wire.Endpoint{MAC: conformance.Aggregator.MAC, IP: c.Switch.Address, Port: c.Port})
	if err != nil {
		b.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: job.ID, Sender: 1, Epoch: uint16(a.Epoch), Seq: seq}.Put(frame[e.Len():])
	s := wire.StripeAt(frame[e.Len():], 0)
	s.SetMask(wire.LaneMask)
	for lane := range wire.Lanes {
		s.SetBits(lane, 0x3f800000)
	}
	e.Seal(frame)
	out := b.sw.Process(1, frame)
	if len(out) != 1 || out[0].Port != 1 {
		b.Fatalf("the switch answers %v", out)
	}
	h, err := wire.ParseHeader(out[0].Data[e.Len():])
	if err != nil {
		b.Fatal(err)
	}
	return h.Type
}

// A P4 switch serves a job like any other data plane: the daemon admits, counts, lists, harvests
// and removes it.
func TestDaemonServesJobs(t *testing.T) {
	b := startP4(t)
	job, host := b.create(7), conformance.Host(0)
	a := b.join(host)
	if a.Stripes != 1 || a.Dense {
		t.Errorf("admission %v, want lane-aligned frames of one stripe", a)
	}
	for seq := range uint32(3) {
		if got := b.push(job, host, a, seq+1); got != wire.TypeAck {
			t.Fatalf("frame %d is answered by type %v", seq+1, got)
		}
	}
	if got := b.push(job, host, a, 3); got != wire.TypeAck {
		t.Fatalf("a repetition is answered by type %v", got)
	}
	stats, err := b.client.Stats(t.Context(), &pb.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(stats.Jobs) != 1 || stats.Jobs[0].Counters["applied"] != 3 || stats.Jobs[0].Counters["duplicates"] != 1 {
		t.Errorf("statistics %v", stats)
	}
	got := make(chan float64, 1)
	h := control.NewHarvester(job, func(h *control.Harvest) error {
		sum := 0.0
		for _, s := range h.Sums {
			sum += float64(s) / (1 << 46)
		}
		got <- sum
		return nil
	}, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	harvested := make(chan error, 1)
	go func() { harvested <- h.Run(ctx) }()
	if err := h.Now(ctx); err != nil {
		t.Fatal(err)
	}
	if sum := <-got; sum != 3*wire.Lanes {
		t.Errorf("the harvest has %v, want %d", sum, 3*wire.Lanes)
	}
	cancel()
	if err := <-harvested; !errors.Is(err, context.Canceled) {
		t.Errorf("the harvest ends with %v", err)
	}
	if _, err := b.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 7}); err != nil {
		t.Fatal(err)
	}
	if got := b.push(job, host, a, 4); got != wire.TypeError {
		t.Errorf("a frame of a removed job is answered by type %v", got)
	}
	b.create(7)
}

// If the switch refuses a request, the status has the remedy, and the jobs do not change.
func TestDaemonRefuses(t *testing.T) {
	b := startP4(t)
	job, host := b.create(7), conformance.Host(0)
	a := b.join(host)
	refused := func(what string, err error, code codes.Code, parts ...string) {
		t.Helper()
		if status.Code(err) != code {
			t.Errorf("%s: %v, want %v", what, err, code)
		}
		for _, part := range parts {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q in it", what, err, part)
			}
		}
	}
	b.sw.Fail(codes.ResourceExhausted)
	_, err := b.client.CreateJob(t.Context(), b.spec(8))
	refused("a job into a full table", err, codes.ResourceExhausted, "the switch's table is full", "remove a job")
	b.create(8)
	b.sw.Fail(codes.Unavailable)
	_, err = b.client.CreateJob(t.Context(), b.spec(9))
	refused("a job while the switch is away", err, codes.Unavailable, "the switch does not answer", "--p4-runtime")
	b.create(9)

	spec := b.spec(10)
	spec.Stripes = 2
	_, err = b.client.CreateJob(t.Context(), spec)
	refused("two stripes", err, codes.InvalidArgument, "at most 1 in a frame")
	spec = b.spec(10)
	spec.Senders = 256
	_, err = b.client.CreateJob(t.Context(), spec)
	refused("more senders than the switch has places", err, codes.ResourceExhausted, "of this aggregator's 256")
	for id := uint32(10); err == nil || id == 10; id++ {
		spec = b.spec(id)
		spec.Slots, spec.Senders = aggregator.PageSlots, 1
		_, err = b.client.CreateJob(t.Context(), spec)
	}
	refused("more slots than the switch has", err, codes.ResourceExhausted, "180224")

	if got := b.push(job, host, a, 1); got != wire.TypeAck {
		t.Errorf("after all that, a frame is answered by type %v", got)
	}
}

// Removals while the switch cannot be reached are executed when it can be reached again.
func TestRemovalWaitsForTheSwitch(t *testing.T) {
	b := startP4(t)
	b.create(7)
	a := b.join(conformance.Host(0))
	b.sw.Fail(codes.Unavailable)
	if _, err := b.client.Leave(t.Context(), &pb.LeaveRequest{Job: 7, Sender: 1, Token: a.Token}); err != nil {
		t.Fatal(err)
	}
	b.join(conformance.Host(0)) // would be admitted already
	b.sw.Fail(codes.Unavailable)
	if _, err := b.client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 7}); err != nil {
		t.Fatal(err)
	}
	b.create(7) // would exist in the data plane
}

// A job of lut arithmetic waits for its tables, and the log shows their progress.
func TestDaemonLoadsTables(t *testing.T) {
	t.Parallel()
	b := startP4(t)
	b.create(7)
	const progress = `msg="loading the tables of lut arithmetic into the switch"`
	if strings.Contains(b.said.String(), progress) {
		t.Error("tables of lut arithmetic are loaded for a job of exact arithmetic")
	}
	spec := b.spec(8)
	spec.Arithmetic = pb.Arithmetic_ARITHMETIC_LUT
	if _, err := b.client.CreateJob(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if said := b.said.String(); strings.Count(said, progress) != 10 || !strings.Contains(said, progress+" entries=344601 of=344601") {
		t.Errorf("the log does not tell each tenth of the entries:\n%s", said)
	}
}

// A daemon that has lost its switch to another controller, or whose switch has lost its
// jobs, ends with an error that names the remedy.
func TestDaemonLosesItsSwitch(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(*p4Bed)
		is   error
		want string
	}{
		"another controller": {func(b *p4Bed) {
			o := p4.Options{Target: b.config.Switch.P4.Runtime, Election: 9, Address: netip.MustParseAddr("192.0.2.1")}
			other, err := p4.Open(o)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { other.Close() })
		}, p4.ErrNotPrimary, "take a higher election ID than its (--p4-election)"},
		"a restart": {func(b *p4Bed) {
			b.stop()
			b.sw.Restart()
			serveP4(b.T, b.config, b.sw)
		}, p4.ErrStateLost, "restart the switch daemon"},
	} {
		t.Run(name, func(t *testing.T) {
			b := startP4(t)
			b.create(7)
			test.lose(b)
			if err := <-b.ended; !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the daemon ends with %v", err)
			}
		})
	}
}

// A daemon that cannot use its switch does not start.
func TestDaemonRefusesAtItsStart(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*cluster.Config, *p4.Switch)
		want   []string
	}{
		"nothing there": {func(c *cluster.Config, _ *p4.Switch) { c.Switch.P4.Runtime += ".absent" },
			[]string{"the switch does not answer at unix:", "check that it runs and that --p4-runtime"}},
		"no address": {func(c *cluster.Config, _ *p4.Switch) { c.Switch.P4.Runtime = "" }, []string{"--p4-runtime", "switch.p4.runtime"}},
		"no ports":   {func(c *cluster.Config, _ *p4.Switch) { c.Switch.P4.Ports = nil }, []string{"--p4-ports"}},
		"another program": {func(_ *cluster.Config, s *p4.Switch) {
			s.Load(&rt.ForwardingPipelineConfig{
				P4Info: &config.P4Info{Tables: []*config.Table{{}}}, Cookie: &rt.ForwardingPipelineConfig_Cookie{Cookie: 7},
			})
		}, []string{"the switch runs a different program", "--p4-replace"}},
		"no program": {func(c *cluster.Config, _ *p4.Switch) { c.Switch.P4.Info, c.Switch.P4.Config = "no/info", "no/json" }, []string{"P4Info: open no/info"}},
		"no configuration": {func(c *cluster.Config, _ *p4.Switch) {
			c.Switch.P4.Info, c.Switch.P4.Config = "program/compiled/libra_v1model.p4info.txtpb", "no/json"
		}, []string{"device configuration: open no/json"}},
		"no P4Info": {func(c *cluster.Config, _ *p4.Switch) {
			c.Switch.P4.Info, c.Switch.P4.Config = "program/compiled/libra_v1model.json", "program/compiled/libra_v1model.json"
		}, []string{"P4Info: ", "libra_v1model.json"}},
		"a host": {func(c *cluster.Config, _ *p4.Switch) { c.Switch.P4.Hosts = map[string]uint32{"here": 1} }, []string{"switch.p4.hosts: ", "here"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, sw, _ := newP4Config(t)
			test.change(c, sw)
			err := node.RunSwitch(t.Context(), node.Env{Config: c, Log: quiet})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

// A compiled program from files works like the built-in one, and hosts have their ports. The log
// names the program and the switch.
func TestDaemonReadsProgramAndHosts(t *testing.T) {
	b := startP4With(t, func(c *cluster.Config) {
		c.Switch.P4.Info, c.Switch.P4.Config = "program/compiled/libra_v1model.p4info.txtpb", "program/compiled/libra_v1model.json"
		c.Switch.P4.Hosts = map[string]uint32{"02:00:00:00:00:05": 2}
	})
	if want := `data_plane="p4, the program in program/compiled/libra_v1model.json, at ` + b.config.Switch.P4.Runtime + `"`; !strings.Contains(b.said.String(), want) {
		t.Errorf("the log has no %s:\n%s", want, b.said.String())
	}
	b.create(1)
	frame := append([]byte{2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 6, 0x88, 0xb5}, make([]byte, 46)...)
	if out := b.sw.Process(1, frame); len(out) != 1 || out[0].Port != 2 {
		t.Errorf("a frame for a host leaves as %v", out)
	}
}
