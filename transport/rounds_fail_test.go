// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// TestReduceMissesWorker lets one of three workers take part only in the first round. The others
// must report what is missing, and remain usable.
func TestReduceMissesWorker(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 3, stripes: 1, limit: time.Second})
	c := newCluster(t, memFabric(t, o), o)
	reduceAll(ctx, t, c.workers, 1)
	var wg sync.WaitGroup
	for i, w := range c.workers[:2] {
		wg.Go(func() {
			v := make([]float32, testSlots)
			var round *RoundError
			var missing *NoResultError
			err := w.Reduce(ctx, v, v)
			if !errors.As(err, &round) || !errors.As(err, &missing) {
				t.Errorf("worker %d: error %v, want a RoundError of a NoResultError", i, err)
				return
			}
			want := RoundError{Parts: 28, Waiting: 28, Round: 1, Err: missing}
			if *round != want || missing.Waited < o.limit {
				t.Errorf("worker %d: %+v, %+v", i, *round, *missing)
			}
			t.Log(err)
			if err := w.Reduce(ctx, v, v); !errors.Is(err, ErrOutOfStep) || !errors.As(err, &missing) ||
				err.Error() != ErrOutOfStep.Error()+": "+round.Error() {
				t.Errorf("worker %d, next reduce: %v", i, err)
			}
			keys, rows := rowsOf(20)
			if err := w.Pull(ctx, keys, rows); err != nil {
				t.Errorf("worker %d, pull: %v", i, err)
			}
			s, err := w.Stats(ctx)
			if free := len(w.link.(*memLink).free); err != nil || free != linkBuffers {
				t.Errorf("worker %d: %d of %d buffers are free, %v, %+v", i, free, linkBuffers, err, s)
			}
		})
	}
	wg.Wait()
}

// TestReduceSilentAggregator reduces without an aggregator.
func TestReduceSilentAggregator(t *testing.T) {
	w := muteRounds(t, retransmit.Config{Silence: 50 * time.Millisecond})
	v := make([]float32, testSlots)
	err := w.Reduce(deadline(t), v, v)
	var round *RoundError
	var peer *PeerError
	var silent *retransmit.SilentPeerError
	if !errors.As(err, &round) || !errors.As(err, &peer) || !errors.As(err, &silent) {
		t.Fatalf("error %v, want a RoundError of a PeerError of a SilentPeerError", err)
	}
	if round.Parts != 3 || round.Unacked != 3 || round.Done+round.Waiting+round.Unsent != 0 {
		t.Errorf("%+v", *round)
	}
	t.Log(err)
	if err := w.Reduce(deadline(t), v, v); !errors.As(err, &silent) {
		t.Errorf("afterwards: %v", err)
	}
}

// muteRounds is [mute] for a synchronous job of two workers with a negotiated
// scale.
func muteRounds(t testing.TB, flow retransmit.Config) *Worker {
	network := newMemNet()
	network.open("10.0.0.1:19522")
	w, err := NewWorker(t.Context(), roundsConfig(t, network, flow))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func roundsConfig(t testing.TB, network *memNet, flow retransmit.Config) WorkerConfig {
	return WorkerConfig{
		Link: network.open("10.0.0.3:19522"), Job: testJob, Sender: 1, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch, HotSet: testHotSet(t), Flow: flow, Stripes: wire.DefaultStripes,
		Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Exp: aggregator.DefaultFixedExp, Workers: 2,
		Aggregator: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 19522}, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 19522},
	}
}

// TestReduceCancelled cancels: before anything is sent nothing changes, afterwards the worker is
// out of step.
func TestReduceCancelled(t *testing.T) {
	w := muteRounds(t, retransmit.Config{Silence: time.Hour})
	v := make([]float32, testSlots)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Reduce(ended, v, v); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	for i, want := range []error{context.DeadlineExceeded, ErrOutOfStep} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := w.Reduce(ctx, v, v)
		cancel()
		if !errors.Is(err, want) {
			t.Errorf("call %d: error %v, want %v", i, err, want)
		}
	}
}

// TestLateCancellationLeavesTheNextCallAlone lets the cancellation of a call arrive when that has
// ended, and the next one waits for another worker.
func TestLateCancellationLeavesTheNextCallAlone(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 2, stripes: 1})
	c := newCluster(t, memFabric(t, o), o)
	first := reduceAll(ctx, t, c.workers, 1)
	w, r, earlier := c.workers[0], c.workers[0].rounds, uint64(0)
	if err := w.Do(ctx, func() { earlier = r.call.id }); err != nil {
		t.Fatal(err)
	}
	v, result := vectors(2, 1), make(chan error, 1)
	go func() { result <- w.Reduce(ctx, v[0], v[0]) }()
	for sent := false; !sent; {
		err := w.Do(ctx, func() {
			if sent = r.active && r.next == r.call.end; sent {
				r.cancelCall(earlier, errors.New("the caller of the first call has given up"))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	go func() { result <- c.workers[1].Reduce(ctx, v[1], v[1]) }()
	for range c.workers {
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	checkSums(t, o, [][][]float32{{first[0][0], v[0]}, {first[1][0], v[1]}})
}

// TestReduceCallersTakeTurns lets several callers wait, cancel, and be waiting at the end.
func TestReduceCallersTakeTurns(t *testing.T) {
	w := muteRounds(t, retransmit.Config{Silence: time.Hour})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if i == 0 {
				ctx = t.Context()
			}
			v := make([]float32, testSlots)
			err := w.Reduce(ctx, v, v)
			if !errors.Is(err, ErrClosed) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrOutOfStep) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestReduceRefuses checks refusals before anything is sent.
func TestReduceRefuses(t *testing.T) {
	ctx := deadline(t)
	for _, c := range []struct {
		arithmetic aggregator.Arithmetic
		bad        float32
		outside    bool // the job's range, but finite
	}{
		{aggregator.Exact, float32(math.NaN()), false},
		{aggregator.Exact, 1 << 17, true},
		{aggregator.Fixed, float32(math.Inf(-1)), false},
		{aggregator.Fixed, -1 << 11, true},
		{aggregator.LUT, float32(math.Inf(1)), false},
	} {
		o := synchronous(clusterOptions{workers: 1, arithmetic: c.arithmetic})
		cl := newCluster(t, memFabric(t, o), o)
		w := cl.workers[0]
		v := make([]float32, testSlots)
		v[7] = c.bad
		err := w.Reduce(ctx, v, v)
		var notFinite *packer.NotFiniteError
		var outside *packer.RangeError
		if c.outside && (!errors.As(err, &outside) || outside.Index != 7 || outside.Key != 1002) ||
			!c.outside && (!errors.As(err, &notFinite) || notFinite.Index != 7 || notFinite.Key != 1002) {
			t.Errorf("%v, %v: error %v", c.arithmetic, c.bad, err)
		}
		if err := w.Reduce(ctx, v[:9], v[:9]); err == nil {
			t.Errorf("%v: a part of the vector was taken", c.arithmetic)
		}
		if _, err := w.Push(ctx, []uint64{5, 1000}, v[10:16]); !errors.Is(err, ErrMode) {
			t.Errorf("%v: push of a hot row: %v", c.arithmetic, err)
		}
		if s, err := w.Stats(ctx); err != nil || s.Hot.Sent+s.Cold.Sent != 0 {
			t.Errorf("%v: %d frames were sent, %v", c.arithmetic, s.Hot.Sent+s.Cold.Sent, err)
		}
		v[7] = 1 // it still works
		if err := w.Reduce(ctx, v, v); err != nil || v[7] != 1 {
			t.Errorf("%v: %v", c.arithmetic, err)
		}
	}
	o := clusterOptions{workers: 1}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	if err := w.Reduce(ctx, nil, nil); !errors.Is(err, ErrMode) {
		t.Errorf("reduce in combine mode: %v", err)
	}
	if _, err := w.NegotiateScale(ctx, nil); !errors.Is(err, ErrMode) {
		t.Errorf("negotiation with exact arithmetic: %v", err)
	}
}

// TestReduceRefused provokes refusals by the aggregator.
func TestReduceRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		tamper func(*WorkerConfig)
		want   wire.Refusal
		says   string
	}{
		{"epoch", func(c *WorkerConfig) { c.AggregatorEpoch++ }, wire.Refusal{Code: wire.CodeWrongEpoch, Value: testEpoch}, "wrong epoch"},
		{"sender", func(c *WorkerConfig) { c.Sender = 99 }, wire.Refusal{Code: wire.CodeUnknownSender}, "sender 99"},
		{"stripes", func(c *WorkerConfig) { c.Stripes = 1 }, wire.Refusal{Code: wire.CodeLength, Value: 2}, "expects 2"},
		{"not a group", func(c *WorkerConfig) { c.Stripes = 3 }, wire.Refusal{Code: wire.CodeLength, Value: 2}, "expects 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t)
			o := synchronous(clusterOptions{workers: 1, stripes: 2, tamper: c.tamper})
			w := newCluster(t, memFabric(t, o), o).workers[0]
			v := make([]float32, testSlots)
			err := w.Reduce(ctx, v, v)
			var round *RoundError
			var peer *PeerError
			var r wire.Refusal
			if !errors.As(err, &round) || !errors.As(err, &peer) || !errors.As(err, &r) || r != c.want || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v\nwant the refusal %v, saying %q", err, c.want, c.says)
			}
			t.Log(err)
			if err := w.Reduce(ctx, v, v); !errors.Is(err, ErrOutOfStep) || !errors.As(err, &r) {
				t.Errorf("next reduce: %v", err)
			}
			if s, err := w.Stats(ctx); err != nil || s.Refusals[c.want.Code] == 0 { // other contributions may have other reasons
				t.Errorf("refusals %v, %v", s.Refusals, err)
			}
		})
	}
}

// TestReduceOverflow lets the sum of two workers leave the range of exact arithmetic: the second
// one is refused, and the first one waits without a result.
func TestReduceOverflow(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 2, limit: 300 * time.Millisecond})
	c := newCluster(t, memFabric(t, o), o)
	refused, missing := 0, 0
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, w := range c.workers {
		wg.Go(func() {
			v := make([]float32, testSlots)
			v[250] = 1<<17 - 1
			err := w.Reduce(ctx, v, v)
			mu.Lock()
			defer mu.Unlock()
			var peer *PeerError
			switch {
			case errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) && errors.As(err, &peer) && peer.Key == 1083:
				refused++
			case errors.As(err, new(*NoResultError)):
				missing++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if refused != 1 || missing != 1 {
		t.Errorf("%d workers were refused, %d missed the other", refused, missing)
	}
}
