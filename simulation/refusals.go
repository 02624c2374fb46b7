// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// A receiver may refuse a frame for what it holds: a sum out of range, no room for a row. The
// ledger does not foresee that: it looks at the answer, and whether there is a reason for it. From
// then on the frame is denied: no copy of it is ever applied, and all get the same answer.

// denyFrame takes a refusal of a frame that had to be applied, or of a copy of a denied one.
func (l *ledger) denyFrame(at *world.Host, e expectation, answer []byte) {
	f := e.frame
	r, err := wire.ParseRefusal(answer)
	switch {
	case err != nil || world.IsQuery(f.kind):
		return // it is no answer to it
	case f.denied != 0 && r.Code != f.denied:
		l.life.Fail("%s refuses frame %d of sender %d for another reason than before: %v", at.Name(), f.id.seq, f.id.sender, r)
	case f.denied != 0 || !e.fresh:
		return
	case !l.mayDeny(at, f, r.Code):
		l.life.Fail("%s refuses frame %d of sender %d without a reason: %v", at.Name(), f.id.seq, f.id.sender, r)
	}
	f.denied, f.applied = r.Code, false
	if f.kind == wire.TypeColdAt {
		l.life.result.ByNumber--
	}
	if f.coded {
		l.life.result.Coded--
	}
	l.applied--
	l.life.result.Denied++
	for _, n := range f.grads {
		g := l.grads.gradientAt(int(n))
		g.applied--
		l.sums[g.param] -= g.inUnits(int(n), l.life.plan.exp)
	}
}

// mayDeny reports whether a receiver has a reason to refuse a frame with a code: it knows roughly
// what the receiver holds.
func (l *ledger) mayDeny(at *world.Host, f *frame, code wire.Code) bool {
	if code == wire.CodeRowsFull {
		return l.life.plan.full > 0 && f.kind == wire.TypeCold
	}
	if code != wire.CodeOverflow {
		return false
	}
	limit := math.Ldexp(1, 63)
	held := map[int]float64{} // magnitudes, by parameter
	if v := l.life.serverAt(at); v != nil {
		for key, sums := range v.store.Pending() {
			for c, n := range sums {
				held[l.index[key]*l.dim+c] = math.Abs(float64(n))
			}
		}
	} else {
		for _, bank := range l.banks {
			l.life.rows.eachSum(bank, func(param int, n int64) { held[param] = max(held[param], math.Abs(float64(n))) })
		}
	}
	for _, e := range l.asked[at] { // what it holds now has the frames of the batch behind this one, too
		for _, n := range e.frame.grads {
			held[int(l.grads.gradientAt(int(n)).param)] += math.Ldexp(float64(n), gradExp-l.life.plan.exp)
		}
	}
	return slices.ContainsFunc(f.grads, func(n int32) bool {
		return held[int(l.grads.gradientAt(int(n)).param)] >= limit
	})
}

// isDenied reports whether a receiver has refused a part of a push for what it held.
func (p *push) isDenied() bool {
	for _, f := range p.frames {
		if f.denied != 0 {
			return true
		}
	}
	return false
}

// isRoom returns a refusal if the open step of a server has no room for the rows of a frame. A
// store without an optimiser counts those, since it forgets them at the end of the step; the stores
// of these lives keep theirs.
func (h *handler) isRoom(rows wire.Rows) error {
	most := h.life.plan.full
	if most == 0 {
		return nil
	}
	open := map[uint64]bool{}
	for key := range h.store.Pending() {
		open[key] = true
	}
	for i := range rows.Count {
		open[rows.Key(i)] = true
		if len(open) > most {
			return wire.Refusal{Code: wire.CodeRowsFull, Index: uint16(i), Value: uint32(most)}
		}
	}
	return nil
}

// deniesCode reports whether receivers of a life may refuse frames with a code.
func (p *plan) deniesCode(code wire.Code) bool {
	return code == wire.CodeOverflow && p.exp != ps.DefaultExp || code == wire.CodeRowsFull && p.full > 0
}
