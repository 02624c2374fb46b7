// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/train"
)

var drains = flag.Int("drains", 3, "drains whose stalls TestDrainStalls measures")

// drainJob asks the server of a cluster to move its job, to any aggregator if to is negative.
func drainJob(t *testing.T, c *cluster.Config, to int) (*pb.DrainResponse, error) {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.ServerOf(c.Job.ID), c.AllServers()[0].Control, access.Security{}, time.Minute,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req := &pb.DrainRequest{Job: uint32(c.Job.ID)}
	if to >= 0 {
		at := uint32(to)
		req.To = &at
	}
	return pb.NewParameterServerClient(conn).Drain(t.Context(), req)
}

// refusesMove reports whether an error refuses a drain for a reason.
func refusesMove(err error, reason string) bool {
	return status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), reason)
}

// awaitSenders waits until an aggregator has admitted n workers to its job.
func awaitSenders(t *testing.T, s cluster.Switch, n int) {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.TheSwitch(), s.Control, access.Security{}, time.Minute, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stats, err := pb.NewAggregatorClient(conn).Stats(t.Context(), &pb.StatsRequest{})
		if err == nil && len(stats.Jobs) == 1 && int(stats.Jobs[0].Senders) >= n {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d workers have not joined at %v: %v, %v", n, s.Control, stats, err)
			return
		}
	}
}

// A training is moved from its switch to a standby and back, while it goes on: with barriers to the
// weights of one process. What an aggregator has left is free.
func TestJobIsDrained(t *testing.T) {
	t.Parallel()
	for _, inStep := range []bool{true, false} {
		for _, servers := range []int{1, 2} {
			t.Run(fmt.Sprintf("sync %v, %d servers", inStep, servers), func(t *testing.T) {
				c := newCluster(t, 2)
				addStandbys(t, c, 1)
				c.Data.Synthetic.Rows = 6003
				serve(t, c, inStep, servers)
				frames := make([]*atomic.Uint64, 2)
				for at := range 2 {
					var stop func()
					frames[at], stop = runAggregator(t, c, at)
					defer stop()
				}
				moves := func(from, to int) {
					switch answer, err := drainJob(t, c, -1); {
					case err != nil:
						t.Errorf("the drain: %v", err)
					case answer.GetFrom() != uint32(from) || answer.To == nil || answer.GetTo() != uint32(to) || answer.Reason != "":
						t.Errorf("the job moves from %d to %d: %v", from, to, answer)
					}
					if inStep {
						awaitSenders(t, c.Aggregators()[to], 2)
					} else { // the other worker may have finished
						awaitSenders(t, c.Aggregators()[to], 1)
					}
				}
				var between uint64
				out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, _ []func()) {
					switch p.Steps {
					case 5:
						moves(0, 1)
					case 70:
						if _, err := drainJob(t, c, 1); !refusesMove(err, "is at that aggregator") {
							t.Errorf("it moves to where it is: %v", err)
						}
						if _, err := drainJob(t, c, 2); !refusesMove(err, "no aggregator 2") {
							t.Errorf("it moves to one that there is not: %v", err)
						}
						between = frames[0].Load()
						frames[0].Store(0)
						moves(1, 0)
					}
				})
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				if between == 0 || frames[0].Load() == 0 || frames[1].Load() == 0 {
					t.Errorf("%d frames were harvested from the switch, %d from the standby, and %d when it had come back", between,
						frames[1].Load(), frames[0].Load())
				}
				want, got := reference(t, c), merged(t, c)
				if inStep && hash(got) != hash(want) {
					t.Errorf("weights %s, in one process %s", hash(got), hash(want))
				}
				if got.Len() != want.Len() {
					t.Errorf("%d rows, in one process %d", got.Len(), want.Len())
				}
			})
		}
	}
}

// Without a standby, or one that answers, a job that is drained goes on without an aggregator, and
// does not come back to that which it has left. A job that is to go to a certain one stays if that
// does not take it.
func TestDrainWithoutAnother(t *testing.T) {
	t.Parallel()
	for standbys := range 2 {
		t.Run(fmt.Sprintf("%d standbys", standbys), func(t *testing.T) {
			c := newCluster(t, 2)
			addStandbys(t, c, standbys)
			c.Data.Synthetic.Rows = 2003
			c.Servers = append(c.Servers, c.Server)
			frames, stop := runAggregator(t, c, 0)
			defer stop()
			var then uint64
			out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, _ []func()) {
				if p.Steps != 5 {
					return
				}
				if standbys > 0 {
					if _, err := drainJob(t, c, 1); !refusesMove(err, "the job stays where it is") {
						t.Errorf("a standby that does not answer: %v", err)
					}
				}
				answer, err := drainJob(t, c, -1)
				if err != nil || answer.From != 0 || answer.To != nil || (answer.Reason == "") != (standbys == 0) {
					t.Errorf("the drain: %v, %v", answer, err)
				}
				if _, err := drainJob(t, c, -1); !refusesMove(err, "has no aggregator now") {
					t.Errorf("another drain: %v", err)
				}
				then = frames.Load()
			})
			if err := errors.Join(out.errs...); err != nil {
				t.Fatal(err)
			}
			if then == 0 || frames.Load() != then {
				t.Errorf("%d frames were harvested until the drain, and %d in all", then, frames.Load())
			}
			if want, got := reference(t, c), merged(t, c); hash(got) != hash(want) {
				t.Errorf("weights %s, in one process %s", hash(got), hash(want))
			}
		})
	}
}

// The stall of a drain is the longest time between the ends of two synchronous steps while it
// lasts, and until both workers have joined again. docs/failures.md names the command:
//
//	go test ./cluster/node -run TestDrainStalls -v -drains 30
func TestDrainStalls(t *testing.T) {
	c := newCluster(t, 2)
	addStandbys(t, c, 1)
	c.Model.Epochs = 1_000_000 // until it is stopped
	c.Servers = append(c.Servers, c.Server)
	for at := range 2 {
		_, stop := runAggregator(t, c, at)
		defer stop()
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	begun := make(chan struct{})
	var measuring atomic.Bool
	var longest atomic.Int64
	measured := make(chan []time.Duration, 1)
	go func() {
		defer end()
		var stalls []time.Duration
		defer func() { measured <- stalls }()
		select {
		case <-begun:
		case <-ctx.Done():
			return
		}
		for n := range *drains {
			longest.Store(0)
			measuring.Store(true)
			answer, err := drainJob(t, c, -1)
			if err != nil || answer.To == nil || answer.GetTo() != uint32((n+1)%2) {
				t.Errorf("drain %d: %v, %v", n, answer, err)
				return
			}
			awaitSenders(t, c.Aggregators()[(n+1)%2], 2)
			for longest.Load() == 0 && ctx.Err() == nil { // a drain may be shorter than a step
				time.Sleep(time.Millisecond)
			}
			measuring.Store(false)
			stalls = append(stalls, time.Duration(longest.Load()))
		}
	}()
	var last time.Time
	out := trainSharded(ctx, t, c, nil, func(p train.Progress, _ []func()) {
		now := time.Now()
		if p.Steps == 5 {
			close(begun)
		}
		if measuring.Load() {
			longest.Store(max(longest.Load(), int64(now.Sub(last))))
		}
		last = now
	})
	end() // it may have failed
	stalls := <-measured
	for _, err := range out.errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if len(stalls) != *drains {
		t.Fatalf("%d of %d drains", len(stalls), *drains)
	}
	slices.Sort(stalls)
	t.Logf("stalls of %d drains: median %v, longest %v", len(stalls), stalls[len(stalls)/2], stalls[len(stalls)-1])
}

// An aggregator is left when it drops more than one frame in a hundred in two windows in
// succession, and enough come to tell.
func TestPressure(t *testing.T) {
	type window struct{ frames, raced, unsent uint64 }
	calm, few, edge, raced, unsent := window{1000, 1, 0}, window{50, 40, 0}, window{990, 10, 0}, window{980, 20, 0}, window{1000, 0, 11}
	for _, c := range []struct {
		windows []window
		want    []int // windows with which it reports, from 0
	}{
		{[]window{raced, calm, raced, few, unsent, edge}, nil},
		{[]window{calm, raced, unsent, calm}, []int{2}},
		{[]window{unsent, unsent, raced, raced, raced, raced, raced, raced, raced, raced, raced, raced, raced, raced, raced, raced}, []int{1, 15}},
	} {
		var p pressure
		m := &pb.HoldResponse{Frames: 77, Raced: 3000, Unsent: 5} // what was before does not count
		if p.takeHeartbeat(m) {
			t.Error("it reports with the first heartbeat")
		}
		var got []int
		for i, w := range c.windows {
			for beat := range uint64(50) {
				m.Frames += w.frames*(beat+1)/50 - w.frames*beat/50
				m.Raced += w.raced*(beat+1)/50 - w.raced*beat/50
				m.Unsent += w.unsent*(beat+1)/50 - w.unsent*beat/50
				if p.takeHeartbeat(m) {
					got = append(got, i)
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: it reports with windows %v, want %v", c.windows, got, c.want)
		}
	}
}

// A job that moves by itself does not go where it has been for the same reason; one that an
// operator moves may.
func TestTargets(t *testing.T) {
	c := newCluster(t, 1)
	addStandbys(t, c, 2)
	s := &server{env: Env{Config: c}, evacuated: map[int]bool{2: true}}
	itself, two := newMove(nil, ""), 2
	itself.stays = true
	for _, one := range []struct {
		m    *move
		want []int
	}{{newMove(nil, ""), []int{2, 0}}, {itself, []int{0}}, {newMove(&two, ""), []int{2}}} {
		if got := s.moveTargets(1, one.m); !slices.Equal(got, one.want) {
			t.Errorf("%+v: %v, want %v", one.m, got, one.want)
		}
	}
}

// Epochs follow one another: one that is a little later than that of the job, and used, may come
// again.
func TestUsedEpochsMayRepeat(t *testing.T) {
	for _, c := range []struct {
		epoch      uint16
		told, used []uint32
		want       bool
	}{
		{5, nil, nil, false}, {5, nil, []uint32{4}, false}, {5, nil, []uint32{5}, true}, {5, []uint32{6}, []uint32{6}, false},
		{65535, nil, []uint32{0}, true}, {65535, []uint32{0}, []uint32{0, 9}, true}, {5, nil, []uint32{30000}, false},
	} {
		if got := mayRepeat(c.epoch, c.told, c.used); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
