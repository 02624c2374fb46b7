// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// harvester takes the banks of a cluster to its ledger, and tells the workers, as a server does.
type harvester struct {
	*testCluster
	marks map[uint16]aggregator.Mark // of the harvests applied
}

func newHarvests(c *testCluster) *harvester {
	return &harvester{c, map[uint16]aggregator.Mark{}}
}

// take applies a harvest; tell says whether the workers learn of it.
func (h *harvester) take(ctx context.Context, tell bool) {
	h.t.Helper()
	bank, err := h.plane.Swap(testJob)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.server.Do(ctx, func() {
		for rank, units := range bank.Slots {
			if units != 0 {
				h.ledger.add(h.hot.Key(uint32(rank/testDim)), rank%testDim, units)
			}
		}
	}); err != nil {
		h.t.Fatal(err)
	}
	for _, m := range bank.Marks {
		h.marks[m.Sender] = m
		if tell {
			if err := h.workers[m.Sender-1].Committed(ctx, m); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	if err := h.plane.Clear(bank); err != nil {
		h.t.Fatal(err)
	}
}

// final returns the mark by which a worker settles.
func (h *harvester) final(w *Worker) aggregator.Mark {
	m, ok := h.marks[w.cfg.Sender]
	if !ok {
		return aggregator.NewMark(aggregator.SenderConfig{ID: w.cfg.Sender, Epoch: testEpoch},
			func(int) (uint32, bool) { return 0, true })
	}
	return m
}

// settle makes a worker settle by that mark.
func (h *harvester) settle(ctx context.Context, w *Worker) error {
	return settleBy(ctx, w, h.final(w))
}

func settleBy(ctx context.Context, w *Worker, mark aggregator.Mark) error {
	return w.Settle(ctx, func(context.Context, uint32) (aggregator.Mark, error) { return mark, nil })
}

// held returns the sums of the ledger alone.
func (h *harvester) held(ctx context.Context) (sums map[uint64][]int64) {
	h.t.Helper()
	if err := h.server.Do(ctx, func() { sums = h.ledger.total(h.hot) }); err != nil {
		h.t.Fatal(err)
	}
	return sums
}

func withLog(cfg *WorkerConfig) { cfg.Replay = minReplay }

// Workers that lose their aggregator while they push lose no gradient and double none, whichever
// harvests the server has applied, whichever answers are lost, and whether or not the aggregator
// lives on.
func TestSettle(t *testing.T) {
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%v %d", layout, seed), func(t *testing.T) {
				ctx := deadline(t)
				o := clusterOptions{workers: 3, layout: layout, tamper: withLog,
					faults: link.Faults{Drop: 0.03, Duplicate: 0.03, Reorder: 0.03, Seed: seed}}
				if seed >= 2 { // hot rows are not coded, wherever they go
					o.codec = testCodec
				}
				h := newHarvests(newCluster(t, memFabric(t, o), o))
				var pushes, settles sync.WaitGroup
				var want map[uint64][]int64
				pushes.Go(func() { want = pushAll(ctx, t, h.workers, seed, 60, 300) })
				for i := range 2 + 2*int(seed) {
					time.Sleep(2 * time.Millisecond)
					h.take(ctx, i%3 > 0)
				}
				if seed%2 == 0 {
					time.Sleep(2 * time.Millisecond) // frames that are in no harvest
				}
				for _, w := range h.workers {
					settles.Go(func() {
						if err := h.settle(ctx, w); err != nil {
							t.Error(err)
						}
					})
				}
				settles.Wait()
				pushes.Wait()
				for _, w := range h.workers {
					if err := w.Flush(ctx); err != nil {
						t.Error(err)
					}
				}
				if diff := cmp.Diff(want, h.held(ctx)); diff != "" {
					t.Errorf("sums after the loss of the aggregator (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A worker keeps acknowledged hot frames until a mark has them; while the log is full its pushes
// wait, and its statistics say so.
func TestLogIsBounded(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense, tamper: withLog}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	w := h.workers[0]
	stats := func() WorkerStats {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	keys, grads := make([]uint64, testHot), make([]float32, testHot*testDim)
	for i := range keys {
		keys[i] = 1000 + uint64(i)
	}
	for i := range grads {
		grads[i] = 1
	}
	const pushes = 1000 // of 4 KB each
	pushed := make(chan error, 1)
	go func() {
		for range pushes {
			if _, err := w.Push(ctx, keys, grads); err != nil {
				pushed <- err
				return
			}
		}
		pushed <- w.Flush(ctx)
	}()
	for stats().LogWaits == 0 {
		time.Sleep(time.Millisecond)
	}
	for over := false; !over; {
		if s := stats(); s.LogBytes > minReplay {
			t.Fatalf("a log of %d bytes", s.LogBytes)
		}
		select {
		case err := <-pushed:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		default:
			h.take(ctx, true)
		}
	}
	h.take(ctx, true)
	if err := w.AwaitCommits(ctx); err != nil {
		t.Fatal(err)
	}
	if s := stats(); s.LogBytes != 0 || s.LogFrames != 0 {
		t.Errorf("a log of %d bytes in %d frames, and all is committed", s.LogBytes, s.LogFrames)
	}
}

// A mark may come before the answers of the frames in it, which are not kept then: no later mark
// would free them.
func TestMarkBeforeTheAnswers(t *testing.T) {
	ctx := deadline(t)
	var lossy *answerLoss
	f := memFabricOn(t, newMemNet(), func(l link.Link) link.Link {
		if lossy == nil { // the aggregator's
			lossy = &answerLoss{Link: l}
			return lossy
		}
		return l
	})
	lossy.on.Store(true)
	o := clusterOptions{workers: 1, tamper: withLog}
	h := newHarvests(newCluster(t, f, o))
	w := h.workers[0]
	if _, err := w.Push(ctx, []uint64{1003, 1004}, make([]float32, 2*testDim)); err != nil {
		t.Fatal(err)
	}
	for h.marks[1].Newest == 0 {
		h.take(ctx, true)
	}
	lossy.on.Store(false)
	if err := errors.Join(w.Flush(ctx), w.AwaitCommits(ctx)); err != nil {
		t.Fatal(err)
	}
	if s, err := w.Stats(ctx); err != nil || s.LogFrames != 0 {
		t.Errorf("%d frames are kept, %v", s.LogFrames, err)
	}
	h.await(ctx, w, func() bool {
		if w.log.reserved != 0 {
			t.Errorf("the log keeps room of %d bytes for frames that are answered", w.log.reserved)
		}
		return true
	})
}

// A mark of frames that the worker has not sent ends it; one of another admission changes nothing.
func TestMarkBeyondWhatWasSent(t *testing.T) {
	for name, give := range map[string]func(context.Context, *Worker, aggregator.Mark) error{
		"committed": func(ctx context.Context, w *Worker, m aggregator.Mark) error { return w.Committed(ctx, m) },
		"settle":    settleBy,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 1, tamper: withLog}
			w := newCluster(t, memFabric(t, o), o).workers[0]
			m := aggregator.Mark{Sender: 1, Epoch: testEpoch + 1, Newest: 9}
			if err := errors.Join(w.Committed(ctx, m), w.Flush(ctx)); err != nil {
				t.Fatal(err)
			}
			m.Epoch = testEpoch
			_ = give(ctx, w, m)
			<-w.Done()
			if !errors.Is(w.Err(), errMark) {
				t.Errorf("the worker ends with %v", w.Err())
			}
		})
	}
}

// Answers that the aggregator does not know the job, the sender or its epoch leave a frame
// unanswered: the mark tells what became of it.
func TestUnknownJobWaitsForTheMark(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, tamper: withLog}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	w := h.workers[0]
	if err := h.plane.RemoveJob(testJob); err != nil {
		t.Fatal(err)
	}
	ticket, err := w.Push(ctx, []uint64{1003}, []float32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for refused := uint64(0); refused == 0; time.Sleep(time.Millisecond) {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		refused = s.Refusals[wire.CodeUnknownJob]
	}
	if err := h.settle(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := ticket.Wait(ctx); err != nil {
		t.Error(err)
	}
	want := newLedger()
	want.addBatch([]uint64{1003}, []float32{1, 2, 3})
	if diff := cmp.Diff(want.sums, h.held(ctx)); diff != "" {
		t.Error(diff)
	}
}

// A gradient that was acknowledged, and that the server then refuses, ends the worker.
func TestSettledFrameIsRefused(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, tamper: withLog}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	w := h.workers[0]
	ticket, err := w.Push(ctx, []uint64{1003}, []float32{1, 2, 3})
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.server.Do(ctx, func() {
		h.ledger.refuse = func(wire.Rows) error { return wire.Refusal{Code: wire.CodeOverflow} }
	}); err != nil {
		t.Fatal(err)
	}
	err = h.settle(ctx, w)
	if !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) || w.Err() == nil {
		t.Errorf("%v, and the worker has ended with %v", err, w.Err())
	}
}

// Without an aggregator a push that wants its sums is refused; one that was sent is applied, and
// says that its sums are lost.
func TestSumsWithoutAggregator(t *testing.T) {
	ctx := deadline(t)
	var lossy *answerLoss
	f := memFabricOn(t, newMemNet(), func(l link.Link) link.Link {
		if lossy == nil { // the aggregator's
			lossy = &answerLoss{Link: l}
			return lossy
		}
		return l
	})
	lossy.on.Store(true)
	o := clusterOptions{workers: 1, mode: aggregator.FetchAdd, tamper: withLog}
	h := newHarvests(newCluster(t, f, o))
	w, key, grads, sums := h.workers[0], []uint64{1003}, []float32{1, 2, 3}, make([]float32, testDim)
	failed := make(chan error, 1)
	go func() { failed <- w.PushSum(ctx, key, grads, sums) }()
	for sent := uint64(0); sent == 0; time.Sleep(time.Millisecond) {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sent = s.Hot.Sent
	}
	if err := h.settle(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, errSumsLost) {
		t.Errorf("the push that was sent: %v", err)
	}
	if err := w.PushSum(ctx, key, grads, sums); !errors.Is(err, errNoAggregator) {
		t.Errorf("a push without an aggregator: %v", err)
	}
	want := newLedger()
	want.addBatch(key, grads)
	if diff := cmp.Diff(want.sums, h.held(ctx)); diff != "" {
		t.Error(diff)
	}
}

// A worker may begin without an aggregator.
func TestNoAggregator(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 2, tamper: func(cfg *WorkerConfig) {
		cfg.NoAggregator, cfg.Aggregator = true, wire.Endpoint{}
	}}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	want := pushAll(ctx, t, h.workers, 1, 20, 200)
	if diff := cmp.Diff(want, h.held(ctx)); diff != "" {
		t.Error(diff)
	}
}

// Ends of steps do not count while a worker has not settled, and after it not in a late copy of a
// frame from before it, until numbers have gone on so far that none can come.
func TestLateEndsOfStepsDoNotCount(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, tamper: withLog}
	c := newCluster(t, memFabric(t, o), o)
	may := func(newest, seq uint32) (counts bool) {
		if err := c.server.Do(ctx, func() {
			a := c.server.senders[1]
			a.last = newest
			counts = a.mayArrive(seq)
		}); err != nil {
			t.Fatal(err)
		}
		return counts
	}
	if !may(20, 20) {
		t.Error("before the loss of the aggregator no end counts")
	}
	if err := c.server.Do(ctx, func() { c.server.RefuseSteps(true) }); err != nil {
		t.Fatal(err)
	}
	if may(20, 20) || may(21, 21) {
		t.Error("an end counts before its worker has settled")
	}
	if err := c.server.TakeSteps(ctx, 1, 21); err != nil {
		t.Fatal(err)
	}
	if may(30, 20) || !may(30, 21) || !may(30, 30) {
		t.Error("a late copy counts, or an end after the settlement does not")
	}
	if !may(22+1<<30, 22+1<<30) || !may(20+1<<31, 20+1<<31) {
		t.Error("an end does not count, much later")
	}
}
