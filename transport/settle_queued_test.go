// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// barredLink has no room for frames while it is full, and does not hear a host while that is mute.
type barredLink struct {
	link.Link
	full atomic.Bool
	mute atomic.Pointer[wire.Endpoint]
}

func (l *barredLink) Send(frames []link.Frame) (int, error) {
	if l.full.Load() {
		return 0, nil
	}
	return l.Link.Send(frames)
}

func (l *barredLink) Receive(p []link.Packet) (int, error) {
	n, err := l.Link.Receive(p)
	kept := 0
	for i := range n {
		if at := l.mute.Load(); at == nil || p[i].Src.AddrPort() != at.AddrPort() {
			p[kept] = p[i]
			kept++
		}
	}
	return kept, err
}

// await waits until a worker is in some state.
func (h *harvester) await(ctx context.Context, w *Worker, state func() bool) {
	h.t.Helper()
	for is := false; !is; runtime.Gosched() {
		if err := w.Do(ctx, func() { is = state() }); err != nil {
			h.t.Fatal(err)
		}
	}
}

// on puts a worker that keeps a log on the link.
func (l *barredLink) on(cfg *WorkerConfig) {
	withLog(cfg)
	l.Link, cfg.Link = cfg.Link, l
}

// Frames for which the link has had no room when the aggregator is lost reach the server, each
// once, and none goes to the aggregator.
func TestSettleWhatWaitsForTheLink(t *testing.T) {
	ctx := deadline(t)
	link := &barredLink{}
	o := clusterOptions{workers: 1, layout: packer.Dense, tamper: link.on}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	w := h.workers[0]
	want := newLedger()
	push := func(keys []uint64, grads []float32) *Ticket {
		t.Helper()
		ticket, err := w.Push(ctx, keys, grads)
		if err != nil {
			t.Fatal(err)
		}
		want.addBatch(keys, grads)
		return ticket
	}
	tickets := []*Ticket{push([]uint64{1003, 1 << 40}, []float32{1, 2, 3, 4, 5, 6})}
	if err := tickets[0].Wait(ctx); err != nil {
		t.Fatal(err)
	}
	link.full.Store(true)
	for i := range uint64(5) {
		tickets = append(tickets, push([]uint64{1003 + i, 2<<40 + i}, []float32{1, 2, 3, 4, 5, 6}))
	}
	h.await(ctx, w, func() bool { return len(w.pushes) == 0 && len(w.out) >= 2 })
	settled := make(chan error, 1)
	go func() { settled <- h.settle(ctx, w) }()
	h.await(ctx, w, w.isDirect)
	link.full.Store(false)
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	for _, ticket := range tickets {
		if err := ticket.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(want.sums, h.held(ctx)); diff != "" {
		t.Error(diff)
	}
}

// A worker ends steps in frames after it has settled, whether or not it had an aggregator.
func TestStepsAfterTheSettlement(t *testing.T) {
	for _, had := range []bool{true, false} {
		ctx := deadline(t)
		m := &meeting{workers: 1, arrived: map[uint16]wire.StepEnd{}}
		o := clusterOptions{workers: 1, arrive: m.arrive, tamper: func(cfg *WorkerConfig) {
			withLog(cfg)
			if !had {
				cfg.NoAggregator, cfg.Aggregator = true, wire.Endpoint{}
			}
		}}
		h := newHarvests(newCluster(t, memFabric(t, o), o))
		m.over = func(step uint64) {
			keys, sums := stepSums(step, 3)
			m.next()
			h.server.GiveSums(step, keys, sums)
		}
		for step := range uint64(2) {
			if err := h.settle(ctx, h.workers[0]); err != nil {
				t.Fatal(err)
			}
			if err := endStep(ctx, t, h.workers[0], &Step{Number: step}); err != nil {
				t.Errorf("had an aggregator %v, step %d: %v", had, step, err)
			}
		}
	}
}

// A flush that waits for a server outlasts a settlement and the next aggregator: it does not wait
// there for numbers of the former one's frames.
func TestFlushOverTwoAggregators(t *testing.T) {
	ctx := deadline(t)
	link := &barredLink{}
	c, s := newSharded(t, memFabric, clusterOptions{workers: 1, layout: packer.Dense, tamper: link.on}, 2)
	h, w := newHarvests(c), c.workers[0]
	push := func(key uint64) {
		t.Helper()
		if _, err := w.Push(ctx, []uint64{key}, []float32{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
	}
	key := uint64(1 << 40)
	for packer.Split(2).Owner(c.hot, key) != 1 {
		key++
	}
	push(1003)
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	at := s.servers[1].link.Local()
	link.mute.Store(&at)
	push(key)
	flushed := make(chan error, 1)
	go func() { flushed <- w.Flush(ctx) }()
	h.await(ctx, w, func() bool { return len(w.flushes) == 1 && w.flushes[0].marks != nil })
	if err := h.settle(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := h.enter(ctx, w, testEpoch+1); err != nil {
		t.Fatal(err)
	}
	link.mute.Store(nil)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
}
