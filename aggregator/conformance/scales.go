// SPDX-License-Identifier: Apache-2.0

package conformance

import "github.com/libra-ina/libra/wire"

// negotiation is the iteration of a job's senders as the generator knows it: a damaged frame is no
// report, so it is never ahead of a receiver, and catches up with it.
type negotiation struct {
	iteration uint32
	reported  [Senders]bool
}

// scale returns a SCALE payload, most often for the current iteration.
func (g *Generator) scale(f flow, seq uint32) []byte {
	r := wire.ScaleReport{Iteration: g.scales[f.job].iteration, Exponent: uint8(g.rng.IntN(wire.InfiniteExponent))}
	if g.oneIn(3) {
		r.Iteration += g.rng.Uint32N(5) - 2
	}
	return wire.PutScale(make([]byte, wire.ScaleLen), g.header(f, seq), r)
}

func isScale(payload []byte) bool {
	return len(payload) == wire.ScaleLen && wire.Type(payload[0]&15) == wire.TypeScale
}

// reported notes that a receiver gets a SCALE payload.
func (g *Generator) reported(f flow, payload []byte) {
	h, err := wire.ParseHeader(payload)
	if err != nil {
		return
	}
	r, err := wire.ParseScale(payload)
	n := &g.scales[f.job]
	if err != nil || h.Epoch != g.jobs[f.job].Epoch || r.Iteration != n.iteration {
		return
	}
	n.reported[f.sender] = true
	if n.reported == [Senders]bool{true, true, true} {
		*n = negotiation{iteration: n.iteration + 1}
	}
}
