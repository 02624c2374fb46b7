// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/internal/trace"
	"github.com/libra-ina/libra/packer"
)

// replayed numbers the keys of a trace: in ascending order.
type replayed struct {
	keys    []uint64
	numbers [][]uint32 // of the rows of each worker
}

func (r *replayed) numberOf(key uint64) int {
	n, found := slices.BinarySearch(r.keys, key)
	if !found {
		return -1
	}
	return n
}

// hotRows returns how many of a trace's keys are hot: of the trainings in the paper, as many as
// there, of others those for which a switch of one page has slots.
func hotRows(t *trace.Trace, keys int) int {
	slots := packer.PageSlots
	for _, s := range []trace.Skew{trace.OA, trace.SE} {
		if t.Name == s.Name && t.Parameters == s.Parameters {
			slots = s.Hot
		}
	}
	return min(keys, slots/t.Dim)
}

// replayLayout is that of a trace whose keys are ranked, the hottest first.
func replayLayout(t *trace.Trace, ranked []uint64) (header, int) {
	shares := make([]share, len(t.Workers))
	for i := range shares {
		shares[i] = share{batches: t.Workers[i].Pushes(), rows: len(t.Workers[i].Keys)}
	}
	return layOut(len(ranked), t.Dim, hotRows(t, len(ranked)), shares)
}

// fillFrom fills a workload with a trace. Gradients are multiplied by a power of two, so that the
// sums of all repetitions are in the range of the job, which makes no difference to any cost.
func (w *workload) fillFrom(t *trace.Trace, ranked []uint64) {
	w.header.putHeader(w.mem)
	copy(w.rankedKeys(), ranked)
	w.replayed = &replayed{keys: slices.Clone(ranked), numbers: make([][]uint32, len(t.Workers))}
	slices.Sort(w.replayed.keys)
	scale := scaleOf(t)
	for i := range t.Workers {
		from, to := &t.Workers[i], w.shareOf(i)
		for k, start := range from.Starts {
			to.starts[k] = uint64(start)
		}
		copy(to.keys, from.Keys)
		for k, g := range from.Grads {
			to.grads[k] = g * scale
		}
		w.replayed.numbers[i] = make([]uint32, len(from.Keys))
		for k, key := range from.Keys {
			w.replayed.numbers[i][k] = uint32(w.replayed.numberOf(key))
		}
	}
}

// largest is the size that no gradient of a replay exceeds: a job that counts units of 2^-46 has
// room for 2^24 of them in a sum.
const largest = 0x1p-7

// scaleOf returns the power of two by which the gradients of a trace are multiplied.
func scaleOf(t *trace.Trace) float32 {
	most := float32(0)
	for _, w := range t.Workers {
		for _, g := range w.Grads {
			most = max(most, max(g, -g))
		}
	}
	if most <= largest {
		return 1
	}
	_, exponent := math.Frexp(float64(most)) // most < 2^exponent
	return float32(math.Ldexp(largest, -exponent))
}

// fillNothing makes the workload of processes that push other things.
func (w *workload) fillNothing() {
	w.header.putHeader(w.mem)
	w.rankedKeys()[0] = keyOf(0)
}
