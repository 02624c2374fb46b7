// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// roundLink answers every contribution with itself as the result: what remains is the worker's own
// cost.
type roundLink struct {
	ackLink
	results [][]byte
	rounds  map[uint16]uint32
}

func newRoundLink() *roundLink {
	return &roundLink{ackLink: *newAckLink(), results: slab(endpoint.Batch), rounds: map[uint16]uint32{}}
}

func (l *roundLink) Send(frames []link.Frame) (int, error) {
	for i, f := range frames {
		if l.n == len(l.results) {
			return i, nil
		}
		payload := l.results[l.n][:copy(l.results[l.n], l.bufs[f.Buf][:f.Len])]
		h, err := wire.ParseHeader(payload)
		if err != nil {
			return 0, err
		}
		slot := wire.StripeAt(payload, 0).Slot(0)
		h.Type, h.Flags, h.Sender, h.Seq = wire.TypeAck, wire.FlagSum|wire.FlagAll, wire.AllSenders, l.rounds[slot]
		l.rounds[slot]++
		h.Put(payload)
		l.acks[l.n], l.src[l.n] = payload, f.To.To()
		l.n++
	}
	return len(frames), nil
}

func TestReduceAllocatesNothing(t *testing.T) {
	l := newRoundLink()
	cfg := roundsConfig(t, newMemNet(), retransmit.Config{})
	cfg.Link = l
	w, err := NewWorker(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	grads, sums := make([]float32, testSlots), make([]float32, testSlots)
	for i := range grads {
		grads[i] = float32(math.Round(rng.NormFloat64() * 64))
	}
	n := testing.AllocsPerRun(100, func() {
		if err := w.Reduce(t.Context(), grads, sums); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("a reduce allocates %.0f times", n)
	}
	if diff := cmp.Diff(grads, sums); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkReduceWorker measures a worker alone: gradients to frames, results to
// sums.
func BenchmarkReduceWorker(b *testing.B) {
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed} {
		b.Run(arithmetic.String(), func(b *testing.B) {
			o := reduceOptions(b, arithmetic)
			cfg := roundsConfig(b, newMemNet(), retransmit.Config{})
			cfg.Link, cfg.HotSet, cfg.Arithmetic = newRoundLink(), o.hot, arithmetic
			w, err := NewWorker(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			grads, sums := make([]float32, o.hot.Slots()), make([]float32, o.hot.Slots())
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Reduce(b.Context(), grads, sums); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(o.hot.Slots()), "ns/value")
		})
	}
}
