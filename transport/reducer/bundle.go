// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"math"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A bundle is the operations of one frame: one, or several that were queued, side by side. Which
// they are follows from the calls of the caller alone, never from time, so it is the same at all
// workers that make the same calls. That they did is checked: the last lanes of a frame carry its
// mark, a number c that says how many operations it has, and whether the last is a barrier; and c
// squared. Of the sums of m workers these are m·c and m·c² only if all have the same c: otherwise
// the mean of the squares is larger than the square of the mean. Bundles are numbered, so those of
// all workers begin with the same operation as long as those before were the same.

// markLanes is the number of lanes of a frame for its mark.
const markLanes = 2

// markExp makes marks normal numbers in jobs of all exponents.
const markExp = 24

// mark is what the last lanes of a bundle carry: a worker's, and their sums.
type mark struct{ own, sum [markLanes]uint32 }

// Bundle returns the number of operations that a frame can carry: 1 if they have more than ten
// values. A frame is not longer for several than for one.
func (s Shape) Bundle() int { return max(1, (s.Stripes()*wire.Lanes-markLanes)/s.Width) }

// markOf returns the index of the mark of bundles.
func markOf(count int, barrier bool) int {
	if barrier {
		return 2*count + 1
	}
	return 2 * count
}

// marksOf returns the marks of a job's bundles, or nil if all are of one operation.
func marksOf(s Shape, job aggregator.JobConfig) []mark {
	if s.Bundle() == 1 {
		return nil
	}
	bitsOf := func(n int) uint32 {
		if job.Arithmetic == aggregator.Exact {
			return math.Float32bits(float32(math.Ldexp(float64(n), job.Exp+markExp)))
		}
		return uint32(n)
	}
	marks := make([]mark, markOf(s.Bundle(), true)+1)
	for c := range marks {
		marks[c] = mark{
			own: [...]uint32{bitsOf(c), bitsOf(c * c)}, sum: [...]uint32{bitsOf(s.Workers * c), bitsOf(s.Workers * c * c)},
		}
	}
	return marks
}

// openBundle begins a bundle. The one before it in its group has been waited for: each of those in
// between has an operation, and InFlight are not started together.
func (r *Reducer[T]) openBundle() error {
	g := r.groupOf(r.closed)
	for g.unconfirmed {
		if err := r.turn(); err != nil {
			return err
		}
	}
	buf, err := r.alloc()
	if err != nil {
		return err
	}
	*g = group{
		slot: g.slot, bundle: r.closed, op: r.next, seq: wire.FirstSeq + uint32(r.closed),
		round: uint32(r.closed / uint64(len(r.groups))),
		buf:   buf, sums: g.sums, due: never, wait: r.rtt.timeout(),
	}
	r.open = g
	payload := r.link.Payload(buf)
	wire.Header{
		Type: wire.TypeHot, Flags: wire.FlagQuiet, Job: r.cfg.Job, Sender: r.cfg.Sender, Epoch: r.cfg.Epoch, Seq: g.seq,
	}.Put(payload)
	for i := range r.stripes {
		s := wire.StripeAt(payload, i)
		s.SetMask(wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, g.slot+uint16(i))
		}
	}
	return nil
}

// addToBundle adds an operation to the open bundle, and closes it if there is no room for another.
func (r *Reducer[T]) addToBundle(bits []uint32, barrier bool) {
	g := r.open
	r.writeLanes(g, g.count*len(bits), bits)
	g.count++
	g.mark = markOf(g.count, barrier)
	if g.count == r.bundle {
		r.closeBundle()
	}
}

// closeBundle ends the open bundle, if there is one, which may be sent then. Lanes without values
// are zero: every group of the job is of whole stripes.
func (r *Reducer[T]) closeBundle() {
	g := r.open
	if g == nil {
		return
	}
	r.open = nil
	r.closed++
	end := r.stripes * wire.Lanes
	if r.marks != nil {
		end -= markLanes
		r.writeLanes(g, end, r.marks[g.mark].own[:])
	}
	payload := r.link.Payload(g.buf)
	for at := g.count * r.cfg.Shape.Width; at < end; at++ {
		wire.StripeAt(payload, at/wire.Lanes).SetBits(at%wire.Lanes, 0)
	}
}

// writeLanes writes values into a bundle's frame, from a lane on.
func (r *Reducer[T]) writeLanes(g *group, at int, bits []uint32) {
	payload := r.link.Payload(g.buf)
	for len(bits) > 0 {
		s, lane := wire.StripeAt(payload, at/wire.Lanes), at%wire.Lanes
		n := min(len(bits), wire.Lanes-lane)
		for i, b := range bits[:n] {
			s.SetBits(lane+i, b)
		}
		at, bits = at+n, bits[n:]
	}
}

// agrees reports whether all workers have the same operations in a bundle that has its sums, if
// they had in those before it.
func (r *Reducer[T]) agrees(g *group) bool {
	return r.marks == nil || [markLanes]uint32(g.sums[len(g.sums)-markLanes:]) == r.marks[g.mark].sum
}

// groupOf returns the group of slots of a bundle.
func (r *Reducer[T]) groupOf(bundle uint64) *group { return &r.groups[bundle%uint64(len(r.groups))] }
