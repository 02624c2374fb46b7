// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// rowsOf returns n keys of every kind and their weights.
func rowsOf(n int) (keys []uint64, want []float32) {
	for i := range n {
		key := 900 + uint64(i)*7
		keys = append(keys, key)
		for c := range testDim {
			want = append(want, weight(key, c))
		}
	}
	return keys, want
}

func TestPull(t *testing.T) {
	for name, f := range map[string]link.Faults{"": {}, "faults": harsh} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 2, flow: hasty, faults: f}
			c := newCluster(t, memFabric(t, o), o)
			var wg sync.WaitGroup
			for _, w := range c.workers {
				for _, n := range []int{0, 1, 121, 122, 20_000} {
					wg.Go(func() {
						keys, want := rowsOf(n)
						got := make([]float32, len(want))
						if err := w.Pull(ctx, keys, got); err != nil {
							t.Error(err)
							return
						}
						for i := range want {
							if got[i] != want[i] {
								t.Errorf("pull of %d: float %d is %g, want %g", n, i, got[i], want[i])
								return
							}
						}
					})
				}
				wg.Go(func() { pushAll(ctx, t, []*Worker{w}, 5, 3, 500) })
			}
			wg.Wait()
		})
	}
}

// A started pull continues concurrently with pushes, ends with its worker, and can be cancelled.
func TestBeginPull(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	keys, want := rowsOf(500)
	got := make([]float32, len(want))
	p, err := w.BeginPull(ctx, keys, got)
	if err != nil {
		t.Fatal(err)
	}
	pushAll(ctx, t, []*Worker{w}, 5, 3, 500)
	if err := p(ctx); err != nil || !slices.Equal(got, want) {
		t.Errorf("the rows are %v, %v, want %v", got, err, want)
	}
	if _, err := w.BeginPull(ctx, keys, got[1:]); err == nil {
		t.Error("a pull into too few floats begins")
	}
	ended, end := context.WithCancel(ctx)
	p, err = w.BeginPull(ended, keys, got)
	if err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := w.BeginPull(ended, keys, got); !errors.Is(err, context.Canceled) {
		t.Errorf("a pull after the end of its context: %v", err)
	}
	if err := p(ended); err != nil && !errors.Is(err, context.Canceled) { // it may have completed already
		t.Errorf("a pull that is given up: %v", err)
	}
	if p, err = w.BeginPull(ctx, keys, got); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("a pull of a worker that ends: %v", err)
	}
	if _, err := w.BeginPull(ctx, keys, got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a pull of a worker that has ended: %v", err)
	}
}

// TestPushSum lets workers add to the same rows and checks that each sees sums
// that include its own push, and the last one the sums of all.
func TestPushSum(t *testing.T) {
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		t.Run(layout.String(), func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 3, mode: aggregator.FetchAdd, layout: layout, faults: link.Faults{Drop: 0.05}}
			c := newCluster(t, memFabric(t, o), o)
			keys := []uint64{1000, 1 << 50, 1007, 1199}
			grads := make([]float32, len(keys)*testDim)
			for i := range grads {
				grads[i] = 1 + float32(i)/4
			}
			for n, w := range c.workers {
				sums := make([]float32, len(grads))
				if err := w.PushSum(ctx, keys, grads, sums); err != nil {
					t.Fatal(err)
				}
				want := make([]float32, len(grads))
				for i := range want {
					if keys[i/testDim] != 1<<50 { // cold: not changed
						want[i] = grads[i] * float32(n+1)
					}
				}
				if diff := cmp.Diff(want, sums); diff != "" {
					t.Fatalf("worker %d (-want +got):\n%s", n, diff)
				}
			}
		})
	}
}

// TestSumsOfNoRows has an answer with sums of ranks that the hot set does not have: they are
// ignored, and the others used.
func TestSumsOfNoRows(t *testing.T) {
	const ranks = 2*wire.Lanes + 5
	for flags, ranksOf := range map[wire.Flags]func(slot uint16, lane int) int{
		wire.FlagDense: func(slot uint16, _ int) int { return int(slot) },
		0:              func(slot uint16, lane int) int { return int(slot)*wire.Lanes + lane },
	} {
		w := &Worker{sums: make([]float32, ranks)}
		want := make([]float32, ranks)
		for _, slot := range []uint16{0, 1, 2, 3, ranks - 1, ranks, ranks + 1, math.MaxUint16} {
			for lane := range wire.Lanes {
				payload := make([]byte, wire.HotLen(1))
				s := wire.StripeAt(payload, 0)
				s.SetMask(1 << lane)
				s.SetSlot(lane, slot)
				s.SetValue(lane, float32(slot)+float32(lane)/64)
				w.takePushSums(flags, payload, 1)
				if rank := ranksOf(slot, lane); rank < ranks {
					want[rank] = float32(slot) + float32(lane)/64
				}
			}
		}
		if diff := cmp.Diff(want, w.sums); diff != "" {
			t.Errorf("flags %v: %s", flags, diff)
		}
	}
}

func TestPushRefusesBadBatches(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		grads := make([]float32, 4*testDim)
		grads[7] = bad
		_, err := w.Push(ctx, []uint64{1000, 1001, 5, 6}, grads)
		var nf *packer.NotFiniteError
		if !errors.As(err, &nf) || nf.Index != 7 || nf.Key != 5 {
			t.Errorf("%v: error %v, want a NotFiniteError at 7 of key 5", bad, err)
		}
	}
	if _, err := w.Push(ctx, []uint64{1, 2}, make([]float32, testDim)); !errors.Is(err, packer.ErrShape) {
		t.Errorf("too few gradients: error %v, want ErrShape", err)
	}
	if err := w.Pull(ctx, []uint64{1}, nil); err == nil {
		t.Error("a pull into nothing was accepted")
	}
	if err := w.PushSum(ctx, []uint64{1}, make([]float32, testDim), nil); err == nil {
		t.Error("a PushSum into nothing was accepted")
	}
	s, err := w.Stats(ctx)
	if err != nil || s.Hot.Sent+s.Cold.Sent != 0 {
		t.Errorf("%d frames were sent, %v", s.Hot.Sent+s.Cold.Sent, err)
	}
	// The worker continues.
	want := pushAll(ctx, t, c.workers, 2, 2, 100)
	if diff := cmp.Diff(want, c.sums()); diff != "" {
		t.Error(diff)
	}
}

// TestRefusals provokes every possible refusal of a push or a pull, and checks that the error names
// the peer and the reason.
func TestRefusals(t *testing.T) {
	hot, cold := uint64(1003), uint64(77)
	huge := float32(1 << 20) // beyond ±2^17
	epoch := func(c *WorkerConfig) { c.AggregatorEpoch++; c.ServerEpoch++ }
	for _, c := range []struct {
		name    string
		options clusterOptions
		key     uint64
		grad    float32
		sums    bool
		pull    bool
		want    wire.Refusal
		role    string
		says    string
	}{
		{name: "epoch, hot", options: clusterOptions{tamper: epoch}, key: hot, want: wire.Refusal{Code: wire.CodeWrongEpoch, Value: testEpoch}, role: "aggregator"},
		{name: "epoch, cold", options: clusterOptions{tamper: epoch}, key: cold, want: wire.Refusal{Code: wire.CodeWrongEpoch, Value: testServerEpoch}, role: "parameter server"},
		{name: "epoch, pull", options: clusterOptions{tamper: epoch}, key: cold, pull: true, want: wire.Refusal{Code: wire.CodeWrongEpoch, Value: testServerEpoch}, role: "parameter server"},
		{name: "job", options: clusterOptions{tamper: func(c *WorkerConfig) { c.Job = 9 }}, key: cold, want: wire.Refusal{Code: wire.CodeUnknownJob}, role: "parameter server", says: "job 9"},
		{name: "sender", options: clusterOptions{tamper: func(c *WorkerConfig) { c.Sender = 99 }}, key: cold, want: wire.Refusal{Code: wire.CodeUnknownSender}, role: "parameter server", says: "sender 99"},
		{name: "dimension", options: clusterOptions{tamper: func(c *WorkerConfig) { c.HotSet, c.Dim = nil, 1 }}, key: cold, want: wire.Refusal{Code: wire.CodeDimension, Value: testDim}, role: "parameter server"},
		{name: "overflow, hot", key: hot, grad: huge, want: wire.Refusal{Code: wire.CodeOverflow, Index: 9}, role: "aggregator", says: "key 1003"},
		{name: "overflow, cold", key: cold, grad: huge, want: wire.Refusal{Code: wire.CodeOverflow}, role: "parameter server", says: "key 77"},
		{name: "sums in combine mode", key: hot, sums: true, want: wire.Refusal{Code: wire.CodeMode}, role: "aggregator"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t)
			cl := newCluster(t, memFabric(t, c.options), c.options)
			cl.ledger.refuse = func(r wire.Rows) error {
				row := make([]float32, r.Dim)
				if r.Row(0, row); row[0] == huge {
					return wire.Refusal{Code: wire.CodeOverflow}
				}
				return nil
			}
			w := cl.worker(1, c.options)
			keys, values := []uint64{c.key}, make([]float32, w.cfg.Dim)
			values[0] = c.grad
			var err error
			switch {
			case c.pull:
				err = w.Pull(ctx, keys, values)
			case c.sums:
				err = w.PushSum(ctx, keys, values, make([]float32, len(values)))
			default:
				var ticket *Ticket
				if ticket, err = w.Push(ctx, keys, values); err == nil {
					err = ticket.Wait(ctx)
				}
			}
			var r wire.Refusal
			var peer *PeerError
			if !errors.As(err, &r) || r != c.want || !errors.As(err, &peer) || peer.Role != c.role || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v\nwant the refusal %v of the %s, saying %q", err, c.want, c.role, c.says)
			}
			if !errors.Is(err, wire.Refusal{Code: c.want.Code}) {
				t.Error("errors.Is does not find the code")
			}
			t.Log(err)
			// Callers without tickets get it from Flush, once.
			if err := w.Flush(ctx); errors.As(err, &r) == (c.pull || c.sums) {
				t.Errorf("first Flush: %v", err)
			}
			if err := w.Flush(ctx); err != nil {
				t.Errorf("second Flush: %v", err)
			}
			s, err := w.Stats(ctx)
			if err != nil || s.Refusals[c.want.Code] != 1 || refused(s.Refusals[:]) != 1 {
				t.Errorf("refusals %v, %v", s.Refusals, err)
			}
			if n := len(cl.sums()); n != 0 {
				t.Errorf("%d rows were changed by a refused frame", n)
			}
		})
	}
}
