// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"fmt"

	"github.com/libra-ina/libra/wire"
)

// writeTaken writes the frame that tells that this worker has a result, and returns its length: 0
// if the link has no buffer now. The device may still read the buffer of the contribution.
func (r *Reducer[T]) writeTaken(g *group) int {
	if g.held {
		return wire.TakenLen
	}
	if g.buf, g.held = r.link.Alloc(); !g.held {
		return 0
	}
	wire.PutTaken(r.link.Payload(g.buf), wire.Header{
		Job: r.cfg.Job, Sender: r.cfg.Sender, Epoch: r.cfg.Epoch, Seq: g.seq,
	}, wire.TakenReport{First: g.slot, Round: g.round})
	return wire.TakenLen
}

// takeConfirmation handles the answer to TAKEN: all workers have a result, or some. The network may
// delay the confirmation of an earlier round, whose group has gone on.
func (r *Reducer[T]) takeConfirmation(h wire.Header, payload []byte) verdict {
	const all, cover = wire.FlagAll, wire.FlagCover
	if _, err := wire.ParseAck(payload, h); err != nil || h.Flags&^(all|cover) != wire.FlagTaken {
		return malformed
	}
	if h.Flags&(all|cover) == all|cover {
		return malformed
	}
	if h.Flags&cover != 0 {
		g := r.waitingAt(h.Seq)
		if g == nil || !g.unconfirmed || h.Sender != r.cfg.Sender {
			return stray
		}
		g.answered, g.ignored, g.contributed = true, 0, wire.Cover(payload, h)
		return taken
	}
	report, err := wire.ParseTaken(payload)
	slot := int(report.First)
	if err != nil || slot%r.stripes != 0 || slot/r.stripes >= len(r.groups) {
		return malformed
	}
	g := &r.groups[slot/r.stripes]
	to, number := r.cfg.Sender, g.seq
	if h.Flags&all != 0 {
		to, number = wire.AllSenders, g.round
	}
	if !g.unconfirmed || report.Round != g.round || h.Sender != to || h.Seq != number {
		return stray
	}
	if g.held {
		r.link.Free(g.buf)
	}
	g.unconfirmed, g.held = false, false
	r.silent = 0
	r.advance()
	return taken
}

// ended returns the error of a wait that is not to go on.
func (r *Reducer[T]) ended(why error) error {
	switch {
	case r.first < r.sent:
		return fmt.Errorf("reducer: operation %d has no result: %w", r.groupOf(r.first).op, why)
	case r.oldest < r.sent:
		return fmt.Errorf("reducer: not all workers have the result of operation %d: %w", r.groupOf(r.oldest).op, why)
	}
	return fmt.Errorf("reducer: operation %d has no result: %w", r.next, why)
}
