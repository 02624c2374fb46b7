// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// enter makes a worker go on at the aggregator, in another admission.
func (h *harvester) enter(ctx context.Context, w *Worker, epoch uint16) error {
	h.t.Helper()
	s := w.cfg.Sender
	if err := h.plane.RemoveSender(testJob, s); err != nil {
		h.t.Fatal(err)
	}
	delete(h.marks, s)
	from := w.cfg.Link.Local()
	if err := h.plane.AddSender(testJob, aggregator.SenderConfig{ID: s, Epoch: epoch, IP: from.IP, MAC: from.MAC, Port: from.Port}); err != nil {
		h.t.Fatal(err)
	}
	return w.Enter(ctx, Peer{w.cfg.Aggregator, epoch})
}

// A worker that has settled goes on at an aggregator again, with numbers that begin anew, and
// settles again: every gradient counts once. A flush that has begun before does not wait for
// numbers of the earlier flow.
func TestEnter(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense, tamper: withLog}
	h := newHarvests(newCluster(t, memFabric(t, o), o))
	w := h.workers[0]
	if err := w.Enter(ctx, Peer{w.cfg.Aggregator, testEpoch}); !errors.Is(err, ErrMode) {
		t.Errorf("entering with an aggregator: %v", err)
	}
	want := map[uint64][]int64{}
	push := func(seed uint64) {
		t.Helper()
		for key, sums := range pushAll(ctx, t, h.workers, seed, 20, 100) {
			if want[key] == nil {
				want[key] = make([]int64, len(sums))
			}
			for i, n := range sums {
				want[key][i] += n
			}
		}
	}
	var before uint64
	for round := range uint16(3) {
		push(uint64(2 * round)) // at the aggregator
		s, err := w.Stats(ctx)
		if err != nil || s.Hot.Sent == before || s.LogFrames == 0 {
			t.Fatalf("round %d: %d hot frames after %d, %d in the log, %v", round, s.Hot.Sent, before, s.LogFrames, err)
		}
		before = s.Hot.Sent
		if round == 1 {
			h.take(ctx, false)
		}
		if err := h.settle(ctx, w); err != nil {
			t.Fatal(err)
		}
		h.discard()
		push(uint64(2*round + 1))                // at the server
		if err := h.settle(ctx, w); err != nil { // of a generation that it has not entered
			t.Errorf("settling without an aggregator: %v", err)
		}
		if s, err := w.Stats(ctx); err != nil || s.Hot.Sent != before {
			t.Errorf("round %d: %d hot frames without an aggregator, %v", round, s.Hot.Sent-before, err)
		}
		if err := h.enter(ctx, w, testEpoch+1+round); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(ctx); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(want, h.held(ctx)); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
	if err := h.settle(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := w.Enter(ctx, Peer{w.cfg.Server, 9}); !errors.Is(err, ErrConfig) {
		t.Errorf("an aggregator at the server's address: %v", err)
	}
	if err := w.Enter(ctx, Peer{wire.Endpoint{}, 9}); err == nil {
		t.Error("an aggregator without an address is taken")
	}
}

// discard clears what the lost aggregator has.
func (h *harvester) discard() {
	h.t.Helper()
	for range 2 {
		bank, err := h.plane.Swap(testJob)
		if err == nil {
			err = h.plane.Clear(bank)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}
