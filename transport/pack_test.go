// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// receivedKeys returns the keys of the COLD frames that have arrived at a server
// which never answers.
func receivedKeys(t *testing.T, server *memLink) (keys []uint64) {
	t.Helper()
	pkts := make([]link.Packet, 1)
	for {
		n, err := server.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return keys
		}
		rows, err := wire.ParseRows(pkts[0].Payload, wire.TypeCold)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows.Count {
			keys = append(keys, rows.Key(i))
		}
	}
}

// TestCancelledPushIsTakenOff abandons a push after some of its frames were sent: none of its rest
// follows, and the next push begins with its own first row.
func TestCancelledPushIsTakenOff(t *testing.T) {
	p := newPausable(t, time.Hour)
	window := p.cfg.Flow.Size
	rows := wire.ColdCap(p.link.Limits().MaxPayload, testDim)
	accept := func(first uint64, n int) *operation {
		o := &operation{ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
		for i := range n {
			o.keys = append(o.keys, first+uint64(i))
		}
		o.values = make([]float32, n*testDim)
		p.acceptOperation(o)
		return o
	}
	turns := func() {
		for busy := true; busy; {
			var err error
			if busy, err = p.turn(); err != nil {
				t.Fatal(err)
			}
		}
	}
	long, short := accept(0, (window+1)*rows), accept(1<<40, 3)
	turns()
	if n := len(receivedKeys(t, p.server)); n != window*rows || long.sealed || short.begun {
		t.Fatalf("%d rows arrived, %d are a window; all in frames: %v, the next push begun: %v", n, window*rows, long.sealed, short.begun)
	}
	long.cause = context.Canceled
	long.cancelled.Store(true)
	p.sweepCancelled()
	<-long.released
	var push *PushError
	want := packer.Sent{ColdRows: window * rows, ColdFrames: window}
	if !errors.As(long.err, &push) || !errors.Is(push, context.Canceled) || push.Complete || push.Sent != want || push.Unacked != window {
		t.Errorf("%v; want the account of a window", long.err)
	}
	for seq := p.flows[flowCold].window.Base(); seq < p.flows[flowCold].window.NextSeq(); seq++ {
		h := wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: seq}
		p.server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), p.link.Local())
		turns()
	}
	if diff := cmp.Diff(short.keys, receivedKeys(t, p.server)); diff != "" {
		t.Errorf("rows that arrived later (-want +got):\n%s", diff)
	}
	if s := p.snapshot(); s.RowsCold != uint64(window*rows+3) {
		t.Errorf("%d rows are counted, %d were sent", s.RowsCold, window*rows+3)
	}
}

// TestBatchesWithoutHotRowsInSyncMode queues a batch that the mode does not allow together with one
// that it allows: only the first is refused.
func TestBatchesWithoutHotRowsInSyncMode(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 1})
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	hot, err1 := w.PushLater(ctx, []uint64{5, 1000}, make([]float32, 2*testDim))
	cold, err2 := w.PushLater(ctx, []uint64{6}, []float32{1, 2, 3})
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := hot.Wait(ctx); !errors.Is(err, ErrMode) {
		t.Errorf("a batch with a hot row: %v, want ErrMode", err)
	}
	if err := cold.Wait(ctx); err != nil {
		t.Errorf("a batch without one: %v", err)
	}
	if err := w.Flush(ctx); !errors.Is(err, ErrMode) {
		t.Errorf("Flush: %v, want the refusal", err)
	}
	if s, err := c.server.Stats(ctx); err != nil || s.Rows != 1 {
		t.Errorf("the server has %d rows, %v", s.Rows, err)
	}
}

// TestPullsDoNotWaitForAPush pulls while a push fills every window: the pull's frames use the
// places that the next answers free.
func TestPullsDoNotWaitForAPush(t *testing.T) {
	p := newPausable(t, time.Hour)
	keys, grads := batch(rand.New(rand.NewPCG(1, 1)), 200_000)
	push := &operation{keys: keys, values: grads, ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
	pull := &operation{pull: true, keys: keys[:1], values: make([]float32, testDim), released: make(chan struct{})}
	p.acceptOperation(push)
	for busy := true; busy; {
		var err error
		if busy, err = p.turn(); err != nil {
			t.Fatal(err)
		}
	}
	p.acceptOperation(pull)
	if _, err := p.turn(); err != nil || pull.asked != 0 || push.sealed {
		t.Fatalf("%v; keys asked for: %d, all of the push in frames: %v", err, pull.asked, push.sealed)
	}
	p.answer()
	if _, err := p.turn(); err != nil || pull.asked != 1 || slices.Contains(p.pulls, pull) {
		t.Errorf("%v; %d keys are asked for after %d answers", err, pull.asked, push.acked)
	}
}

// TestRefusalsThatFlushReports checks that they are those of batches whose caller did not get them,
// the first of them, once.
func TestRefusalsThatFlushReports(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	bad := func(at int) []float32 {
		grads := make([]float32, 2*testDim)
		grads[at] = float32(math.NaN())
		return grads
	}
	var notFinite *packer.NotFiniteError
	if _, err := w.Push(ctx, []uint64{1, 2}, bad(0)); !errors.As(err, &notFinite) {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Errorf("Flush after a Push that was refused: %v", err)
	}
	for _, at := range []int{4, 5} {
		if _, err := w.PushLater(ctx, []uint64{1, 2}, bad(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(ctx); !errors.As(err, &notFinite) || notFinite.Index != 4 {
		t.Errorf("Flush: %v, want the first refusal", err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Errorf("the next Flush: %v", err)
	}
}

// TestPackReportsWork packs as many frames as one batch to the link holds, and returns whether it
// did anything.
func TestPackReportsWork(t *testing.T) {
	w := idleWorker(t)
	push := func(rows int) {
		w.acceptOperation(&operation{keys: make([]uint64, rows), values: make([]float32, rows*testDim), released: make(chan struct{})})
	}
	if w.packPushes() {
		t.Error("did something without a push")
	}
	if push(0); !w.packPushes() || w.packPushes() {
		t.Error("an empty push is not packed once")
	}
	push(200 * wire.ColdCap(w.link.Limits().MaxPayload, testDim))
	if !w.packPushes() || len(w.out) != endpoint.Batch {
		t.Errorf("%d frames for one batch, want %d", len(w.out), endpoint.Batch)
	}
	if w.packPushes() {
		t.Error("did something without room")
	}
	if _, err := w.transmit(); err != nil {
		t.Fatal(err)
	}
	if !w.packPushes() || len(w.out) != endpoint.Batch {
		t.Errorf("%d frames for the next batch, want %d", len(w.out), endpoint.Batch)
	}
}
