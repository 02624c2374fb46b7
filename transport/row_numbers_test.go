// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// TestRowNumbers pushes prepared batches while the server repeatedly renumbers its rows, over
// faulty links: each gradient is added once, by key or by number, also in codes.
func TestRowNumbers(t *testing.T) {
	for name, o := range map[string]clusterOptions{"no faults": {}, "faults": {faults: harsh},
		"faults, coded": {faults: harsh, codec: testCodec}} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o.workers, o.flow = 1, hasty
			c := newCluster(t, memFabric(t, o), o)
			w, want := c.workers[0], newLedger()
			rng := rand.New(rand.NewPCG(5, 5))
			var prepared []*Prepared
			var keysOf [][]uint64
			for i := range 6 {
				keys := make([]uint64, 20+rng.IntN(20)+200*(i/3)) // some of them share frames
				for k := range keys {
					keys[k] = rng.Uint64N(500)
				}
				p, err := w.Prepare(keys)
				if err != nil {
					t.Fatal(err)
				}
				prepared, keysOf = append(prepared, p), append(keysOf, keys)
			}
			for n := range 300 {
				i := rng.IntN(6)
				grads := make([]float32, len(keysOf[i])*testDim)
				for k := range grads {
					grads[k] = float32(rng.NormFloat64())
				}
				want.addBatch(keysOf[i], asReceived(w, keysOf[i], grads))
				push := prepared[i].PushLater
				if rng.IntN(2) == 0 {
					push = prepared[i].Push
				}
				if _, err := push(ctx, grads); err != nil {
					t.Fatal(err)
				}
				if n%20 == 19 {
					if err := c.server.Do(ctx, c.ledger.renumber); err != nil {
						t.Fatal(err)
					}
				}
				if n%50 == 49 { // what is sent again is acknowledged before it returns
					if err := w.Flush(ctx); err != nil {
						t.Fatal(err)
					}
					var got map[uint64][]int64
					if err := c.server.Do(ctx, func() { got = c.ledger.total(c.hot) }); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(withoutZeros(want.sums), got); diff != "" {
						t.Fatalf("after push %d: %s", n, diff)
					}
				}
			}
			s, err := w.Stats(ctx)
			if coded := o.codec == testCodec; (s.CodedValues == s.RowsCold*testDim) != coded || (s.CodedBytes > 0) != coded {
				t.Errorf("%d values of %d rows coded in %d bytes", s.CodedValues, s.RowsCold, s.CodedBytes)
			}
			if err != nil || s.RowsAt == 0 || s.Renamed == 0 || s.Refusals[wire.CodeNumbering] == 0 || refused(s.Refusals[:]) != s.Refusals[wire.CodeNumbering] {
				t.Errorf("%d rows by number, %d by key after that, refusals %v, %v", s.RowsAt, s.Renamed, s.Refusals, err)
			}
		})
	}
}

// workerOf returns a worker of a server and its link.
func workerOf(ctx context.Context, t *testing.T, server *Server) (link.Link, *Worker) {
	t.Helper()
	l := openTestUDP(t)
	w, err := NewWorker(ctx, WorkerConfig{Link: l, Job: testJob, Sender: 1, ServerEpoch: testServerEpoch, Dim: testDim, Server: server.link.Local()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if err := server.Admit(ctx, 1, l.Local().AddrPort(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	return l, w
}

// TestLocate requests row numbers that the server has, has in part, and does not assign.
func TestLocate(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	locate := func(keys ...uint64) *Prepared {
		p, err := w.Prepare(keys)
		if err == nil {
			err = p.Locate(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ticket, err := w.Push(ctx, []uint64{1, 2, 3}, make([]float32, 3*testDim))
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		keys      []uint64
		sent, all uint64 // by number, and all
	}{
		{[]uint64{3, 1}, 2, 2},
		{[]uint64{3, 4}, 0, 2}, // key 4 has no row
		{[]uint64{1000}, 0, 0}, // is hot
		{[]uint64{1000, 1, 1}, 2, 2},
	} {
		before, _ := w.Stats(ctx)
		ticket, err := locate(c.keys...).Push(ctx, make([]float32, len(c.keys)*testDim))
		if err == nil {
			err = ticket.Wait(ctx)
		}
		after, failed := w.Stats(ctx)
		if err != nil || failed != nil || after.RowsAt-before.RowsAt != c.sent || after.RowsCold-before.RowsCold != c.all {
			t.Errorf("keys %v: %d rows, %d by number, %v, %v", c.keys, after.RowsCold-before.RowsCold, after.RowsAt-before.RowsAt, err, failed)
		}
	}
	p, err := w.Prepare([]uint64{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.server.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := p.Locate(ctx); !errors.Is(err, wire.Refusal{Code: wire.CodeUnknownSender}) {
		t.Errorf("refused: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Locate(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A failed push requests no row numbers: there may be no such rows.
func TestFailedPushesAskForNoNumbers(t *testing.T) {
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	ctx, w := deadline(t), c.workers[0]
	b, err := w.Prepare([]uint64{1 << 40, 1 << 41})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.server.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	unknown := wire.Refusal{Code: wire.CodeUnknownSender}
	ticket, err := b.Push(ctx, make([]float32, 2*testDim))
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if !errors.Is(err, unknown) {
		t.Errorf("the push: %v", err)
	}
	if err := w.Pull(ctx, []uint64{1}, make([]float32, testDim)); !errors.Is(err, unknown) { // after the requests of the push
		t.Errorf("the pull: %v", err)
	}
	if s, err := w.Stats(ctx); err != nil || s.Finds != 0 {
		t.Errorf("%d frames ask for row numbers, %v", s.Finds, err)
	}
}

// A caller who gives up Locate says nothing about the server: row numbers are still used later.
func TestLocateThatIsGivenUp(t *testing.T) {
	p := newPausable(t, time.Hour)
	b, err := p.Prepare([]uint64{5, 6})
	if err != nil {
		t.Fatal(err)
	}
	o := numbersSearch(b.places.ColdRows())
	o.released = make(chan struct{})
	p.acceptOperation(o)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	o.cause = context.Canceled // as Worker.await does
	o.cancelled.Store(true)
	p.sweepCancelled()
	for _, h := range arrived(t, p.server) {
		p.answerWith(found(h, 1, 1, 2))
	}
	if !errors.Is(o.err, context.Canceled) || p.keysOnly {
		t.Errorf("the call: %v; row numbers are never asked for again: %v", o.err, p.keysOnly)
	}
}

// Each batch of a group of pushes gets row numbers, and loses them when the server refuses its
// numbering.
func TestRowNumbersOfGroups(t *testing.T) {
	p := newPausable(t, time.Hour)
	l := p.link.(*memLink)
	batches := make([]*Prepared, 2)
	f := &testFeed{done: make(chan struct{}), left: 2 * len(batches)}
	hand := func() {
		for i := range batches {
			push := &fedPush{feed: f}
			push.Prepared, push.Values, push.Owner = batches[i], make([]float32, testDim), push
			p.Hand(&push.Request)
		}
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
	}
	// answer answers everything, and returns how many frames of each type there were.
	answer := func() map[wire.Type]int {
		counts := map[wire.Type]int{}
		for headers := arrived(t, p.server); len(headers) > 0; headers = arrived(t, p.server) {
			for _, h := range headers {
				counts[h.Type]++
				switch h.Type {
				case wire.TypeFind:
					p.answerWith(found(h, 1, 1))
				case wire.TypeColdAt:
					p.answerWith(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeNumbering}))
				default:
					p.answerWith(wire.PutAck(make([]byte, wire.HeaderLen), h))
				}
				if h.Type == wire.TypeColdAt {
					for i, b := range batches {
						if b.places.ColdRows().Numbers() != nil {
							t.Errorf("batch %d keeps its row numbers", i)
						}
					}
				}
			}
		}
		return counts
	}
	for i := range batches {
		var err error
		if batches[i], err = p.Prepare([]uint64{uint64(5 + i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []map[wire.Type]int{
		{wire.TypeCold: 1, wire.TypeFind: 2},
		{wire.TypeColdAt: 1, wire.TypeCold: 1, wire.TypeFind: 2},
	} {
		hand()
		if got := answer(); !cmp.Equal(got, want) {
			t.Errorf("frames %v, want %v", got, want)
		}
		for i, b := range batches {
			if b.places.ColdRows().Numbers() == nil {
				t.Errorf("batch %d has no row numbers", i)
			}
		}
	}
	if f.left != 0 || len(l.free) != len(l.bufs) {
		t.Errorf("%d pushes are not settled, %d of %d buffers are free", f.left, len(l.free), len(l.bufs))
	}
}
