// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// The answers of the two services match, and each number is in its place.
func TestAnswersOfBothServices(t *testing.T) {
	answers := func() (*pb.Membership, *pb.Admission) {
		return &pb.Membership{Instance: 9, Epoch: 4, FirstStep: 17},
			&pb.Admission{
				Instance: 9, Epoch: 5, Window: wire.DefaultWindow, Exponent: -30, Workers: 6, Stripes: 7, Pages: 3,
				Mode: pb.Mode_MODE_SYNC, Arithmetic: ArithmeticMessage(aggregator.Fixed),
			}
	}
	joined, admitted := answers()
	m := &Membership{job: 5, cfg: JoinConfig{Job: 5, Pages: 3}}
	if err := m.take(joined, admitted); err != nil {
		t.Fatal(err)
	}
	if m.AggregatorEpoch != 5 || m.ServerEpoch != 4 || m.FirstStep != 17 || m.Exp != -30 || m.Workers != 6 || m.Stripes != 7 ||
		m.Mode != aggregator.Sync || m.Arithmetic != aggregator.Fixed || m.Dense {
		t.Errorf("%+v", m)
	}
	admitted.Dense = true
	if err := m.take(joined, admitted); err != nil || !m.Dense {
		t.Errorf("%+v, %v", m, err)
	}
	for name, c := range map[string]struct {
		change func(*pb.Membership, *pb.Admission)
		want   string
	}{
		"instance":   {func(m *pb.Membership, _ *pb.Admission) { m.Instance = 8 }, "the parameter server served instance 8 of job 5 when this worker joined it, the aggregator has instance 9 (the server was restarted meanwhile): start this worker again"},
		"window":     {func(_ *pb.Membership, a *pb.Admission) { a.Window = 16 }, "within 16 frames, this worker needs 512"},
		"pages":      {func(_ *pb.Membership, a *pb.Admission) { a.Pages = 2 }, "the aggregator takes 131072 hot scalars of job 5, the hot set has more: run the same version of Libra on all hosts"},
		"no pages":   {func(_ *pb.Membership, a *pb.Admission) { a.Pages = 0 }, "the aggregator takes 65536 hot scalars of job 5, the hot set has more"},
		"mode":       {func(_ *pb.Membership, a *pb.Admission) { a.Mode = 77 }, "runs job 5 in mode 77 with arithmetic ARITHMETIC_FIXED, which this worker does not know"},
		"arithmetic": {func(_ *pb.Membership, a *pb.Admission) { a.Arithmetic = 77 }, "in mode MODE_SYNC with arithmetic 77, which this worker does not know"},
	} {
		joined, admitted := answers()
		c.change(joined, admitted)
		err := (&Membership{job: 5, cfg: JoinConfig{Job: 5, Pages: 3}}).take(joined, admitted)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, errRestarted) != (name == "instance") {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
	}
}

// With several servers a worker waits for all of them, and an error names the one that does not
// answer.
func TestJoinNamesTheServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	mute := silent.Addr().(*net.TCPAddr).AddrPort() // accepts connections, but does not answer
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	defer server.Stop()
	go func() { _ = server.Serve(l) }()
	answers := l.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = Join(ctx, JoinConfig{
		Job: 5, Worker: 1, From: answers, HotSet: []byte{1}, Server: answers, MoreServers: []netip.AddrPort{answers, mute}, Aggregator: answers,
		Limit: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	want := "parameter server 2 of 3 (by index, from 0) at " + mute.String() + " did not answer within 300ms: is it running, and is the address right?"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	_, err = Join(ctx, JoinConfig{
		Job: 5, Worker: 1, From: answers, HotSet: []byte{1}, Server: answers, Aggregator: mute, Limit: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if want := "switch daemon at " + mute.String() + " did not answer within 300ms: is it running, and is the address right?"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	_, err = Join(ctx, JoinConfig{From: answers, HotSet: []byte{1}, Server: answers, MoreServers: []netip.AddrPort{{}}, Aggregator: answers})
	if want := "control: JoinConfig.MoreServers[0] is missing: give an address and a port"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// A call goes to all servers at once. The first error ends the others, and names its server.
func TestCallOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which ends if a call waits in vain
		m := &Membership{ctx: t.Context(), servers: []joinedServer{{role: "server 0"}, {role: "server 1"}, {role: "server 2"}}}
		var together sync.WaitGroup
		together.Add(3)
		err := m.call(t.Context(), "barrier", func(ctx context.Context, s *joinedServer) error {
			together.Done()
			together.Wait()
			if s.role == "server 1" {
				return context.DeadlineExceeded
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if want := "server 1: barrier: context deadline exceeded"; err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := m.Reduce(t.Context(), 0, 1, nil, HotFrames{}); err == nil || !strings.Contains(err.Error(), "the job has 3 parameter servers") {
			t.Errorf("sums of several servers: %v", err)
		}
	})
}

// What a call has begun ends with it. If its caller ends it, that is the reason for an error,
// whatever the service says, and no error is none.
func TestEndOfACall(t *testing.T) {
	m := &Membership{ctx: t.Context(), servers: []joinedServer{{role: "server"}}}
	var during context.Context
	if err := m.call(t.Context(), "done", func(ctx context.Context, _ *joinedServer) error { during = ctx; return nil }); err != nil || during.Err() == nil {
		t.Errorf("%v, its context %v", err, during.Err())
	}
	for _, answer := range []error{nil, status.Error(codes.FailedPrecondition, "worker 2 is lost")} {
		caller, end := context.WithCancel(t.Context())
		err := m.call(caller, "done", func(context.Context, *joinedServer) error {
			end()
			return answer
		})
		if (err == nil) != (answer == nil) || err != nil && (!errors.Is(err, context.Canceled) || err.Error() != "server: done: context canceled") {
			t.Errorf("%v became %v", answer, err)
		}
	}
}
