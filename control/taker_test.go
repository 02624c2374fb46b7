// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// taker takes the harvests of a job until stop is called.
func taker(t *testing.T, job *Owned) (k *Taker, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	k = NewTaker(ctx, job, 100, quiet)
	return k, func() { cancel(); <-k.Done() }
}

// Without a call there is no harvest. A call clears the bank of the one before, and gets what was
// pushed since, once.
func TestTakerAsksForEachHarvest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		k, stop := taker(t, l.create(t, spec()))
		defer stop()
		epoch, seq := l.join(t), uint32(0)
		push := func(n int) {
			for range n {
				seq++
				l.push(t, epoch, seq, 3, 0.5)
			}
		}
		for round, pushes := range []int{5, 3, 0, 7} {
			push(pushes)
			time.Sleep(time.Minute)
			if got := l.stats(t).Jobs[0]; got.Harvests != uint64(round) {
				t.Errorf("there were %d harvests, but %d calls", got.Harvests, round)
			}
			if round > 0 {
				if held := l.stats(t).Jobs[0].HarvestHeld.GetCount(); held != uint64(round-1) {
					t.Errorf("%d harvests are acknowledged before call %d", held, round)
				}
			}
			sums, err := k.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for rank, sum := range sums {
				if want := int64(pushes) * units(t, 0.5); rank == 3 && sum != want || rank != 3 && sum != 0 {
					t.Errorf("round %d: rank %d has the sum %d, want %d", round, rank, sum, want)
				}
			}
		}
	})
}

// Whenever the connection breaks, each push is in one harvest, and a harvest has all that was
// acknowledged before the call.
func TestTakerSurvivesBrokenConnections(t *testing.T) {
	for name, harm := range map[string]func(*client){"both halves": (*client).Break, "the client's half": (*client).HalfOpen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := startAggregator(t)
				k, stop := taker(t, l.create(t, spec()))
				defer stop()
				worker := l.dial(t, access.Security{}, workerIP.String())
				_, a, err := joinAs(t.Context(), pb.NewAggregatorClient(worker), joinRequest())
				if err != nil {
					t.Fatal(err)
				}
				var sum int64
				for seq := uint32(1); seq <= 1000; seq++ {
					l.push(t, uint16(a.Epoch), seq, uint16(seq%100), 0.5)
					switch seq % 20 {
					case 3: // before a call
						harm(l.host)
					case 10: // during the next
						go func() {
							time.Sleep(time.Duration(seq) * time.Microsecond)
							harm(l.host)
						}()
					}
					if seq%5 != 0 {
						continue
					}
					sums, err := k.Take(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, s := range sums {
						sum += s
					}
					if want := int64(seq) * units(t, 0.5); sum != want {
						t.Fatalf("after %d pushes the sum is %d, want %d", seq, sum, want)
					}
				}
				time.Sleep(time.Second) // until nothing more breaks
			})
		})
	}
}

// A harvest that was sent again answers no call by itself: it may have been frozen before.
func TestTakerAddsAnEarlierHarvest(t *testing.T) {
	s := &scripted{chunks: []*pb.HarvestChunk{
		{Number: 1, Sums: words(0b11, 10, 20), Frames: 1, Last: true},
		{Number: 2, Sums: words(0b10, 5), Frames: 1, Last: true, Request: 1},
	}}
	k := NewTaker(t.Context(), &Owned{ID: 7, Job: &pb.Job{Key: []byte("key")}, client: s}, 100, quiet)
	if sums, err := k.Take(t.Context()); err != nil || sums[0] != 10 || sums[1] != 25 {
		t.Errorf("sums %v: %v", sums[:3], err)
	}
	if _, err := k.Take(t.Context()); err == nil {
		t.Error("after the end of the stream there is another harvest")
	}
	<-k.Done()
}

// What does not fit the job ends the taker's call.
func TestTakerRefusesWrongSums(t *testing.T) {
	for want, chunks := range map[string][]*pb.HarvestChunk{
		"a sum of rank 100, but the job has 100 slots": {{Number: 1, First: 100, Sums: words(1, 7), Last: true, Request: 1}},
		"the sum of rank 0 exceeds 64 bits": {{Number: 1, Sums: words(1, math.MaxInt64), Last: true},
			{Number: 2, Sums: words(1, 1), Last: true, Request: 1}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		k := NewTaker(ctx, &Owned{ID: 7, Job: &pb.Job{Key: []byte("key")}, client: &scripted{chunks: chunks}}, 100, quiet)
		if _, err := k.Take(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		cancel()
		<-k.Done()
	}
}

// The end of a job, and of the caller's context, end a call.
func TestTakerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		k, stop := taker(t, job)
		defer stop()
		l.host.Vanish()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := k.Take(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without an answer: %v", err)
		}
		l.host.ComeBack()
		if _, err := k.Take(t.Context()); err != nil {
			t.Error(err)
		}
		if err := job.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Take(t.Context()); err == nil || !strings.Contains(err.Error(), "job 5 was removed") {
			t.Errorf("after the end of the job: %v", err)
		}
	})
}

// A worker without a parameter server waits for the job's owner, for as long as it may.
func TestJoinWithoutServer(t *testing.T) {
	s := startServices(t)
	cfg := s.join
	cfg.NoServer, cfg.Job = true, 6
	if _, err := Join(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "NoServer is set, and so is Server") {
		t.Errorf("with a server: %v", err)
	}
	cfg.Server = netip.AddrPort{}
	cfg.Limit = 100 * time.Millisecond
	if _, err := Join(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "no job 6") {
		t.Errorf("without an owner: %v", err)
	}
	cfg.Limit = time.Minute
	type result struct {
		m   *Membership
		err error
	}
	joined := make(chan result)
	go func() {
		m, err := Join(t.Context(), cfg)
		joined <- result{m, err}
	}()
	conn, err := access.Dial(t.Context(), access.TheSwitch(), cfg.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	of := spec()
	of.Job, of.HotSet = 6, cfg.HotSet
	job, err := CreateJob(t.Context(), pb.NewAggregatorClient(conn), of, 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	got := <-joined
	if got.err != nil {
		t.Fatal(got.err)
	}
	m := got.m
	if m.Exp != int(*of.Exponent) || m.AggregatorEpoch == 0 && m.Stripes == 0 {
		t.Errorf("the membership is %+v", m)
	}
	if err := errors.Join(m.Barrier(t.Context(), 0), m.Done(t.Context()), m.Report(t.Context(), 1, 1, true)); err != nil {
		t.Errorf("calls of no server: %v", err)
	}
	if _, err := m.Reduce(t.Context(), 0, 1, nil, HotFrames{}); err == nil || !strings.Contains(err.Error(), "0 parameter servers") {
		t.Errorf("a reduce: %v", err)
	}
	lost := m.ctx
	if err := job.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost.Done()
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "job 6 was removed") {
		t.Errorf("at the end of the job: %v", err)
	}
	m.Leave()
}
