// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// takeRoundAnswer handles an answer, to a contribution or to all workers, with the job and the
// epoch of the flow. It returns other for answers to something else. An answer that
// does not match a contribution changes nothing.
func (r *rounds) takeRoundAnswer(h wire.Header, payload []byte) verdict {
	refused := -1
	switch {
	case h.Type == wire.TypeAck && (r.groups > 0 || h.Flags&(wire.FlagAll|wire.FlagScale) != 0):
	case h.Type == wire.TypeError && r.outstandingAt(h.Seq) >= 0:
		refused = r.outstandingAt(h.Seq)
	case (h.Type == wire.TypeRows || h.Type == wire.TypeFound) && r.outstandingAt(h.Seq) >= 0:
		return malformed // an answer to a request to a server
	default:
		return other
	}
	to := r.w.cfg.Sender
	if h.Flags&wire.FlagAll != 0 {
		to = wire.AllSenders
	}
	switch {
	case h.Sender != to:
		return stray
	case refused >= 0:
		return r.contributionRefused(refused, payload)
	case h.Flags&^wire.FlagScale == 0:
		return r.contributionAcked(h, payload)
	case h.Flags&^wire.FlagAll == wire.FlagSum:
		return r.takeGroupSums(h, payload)
	case h.Flags&^wire.FlagAll == wire.FlagSum|wire.FlagScale:
		return r.takeScale(h, payload)
	}
	return malformed
}

// wasSent reports whether the frame of a contribution was sent; before that, no answer
// to it is valid.
func (r *rounds) wasSent(c *contribution) bool {
	return c.state != idle && int32(c.seq-r.flow.window.NextUnsent()) < 0
}

// outstandingAt returns the contribution whose frame has a sequence number, or -1.
func (r *rounds) outstandingAt(seq uint32) int {
	if i := r.unackedAt(seq); i >= 0 {
		return i
	}
	for i := range r.contributions {
		if c := &r.contributions[i]; c.seq == seq && c.state == waiting {
			return i
		}
	}
	return -1
}

// unackedAt returns the sent, unacknowledged contribution with a sequence number, or -1.
func (r *rounds) unackedAt(seq uint32) int {
	i := int(*r.recentAt(seq))
	if c := &r.contributions[i]; c.seq == seq && c.state == sent && r.wasSent(c) {
		return i
	}
	return -1
}

func (r *rounds) recentAt(seq uint32) *uint16 { return &r.recent[seq%uint32(len(r.recent))] }

// contributionAcked records that the aggregator has a contribution and waits for other workers.
func (r *rounds) contributionAcked(h wire.Header, payload []byte) verdict {
	if len(payload) != wire.HeaderLen {
		return malformed
	}
	i := r.unackedAt(h.Seq)
	if i < 0 {
		// A repeated acknowledgement, for example of a frame that asks for the result again.
		if r.outstandingAt(h.Seq) < 0 {
			return stray
		}
		r.heard = r.w.now
		return taken
	}
	now := r.w.now
	r.heard = now
	e, _ := r.flow.window.Ack(now, h.Seq)
	r.unacked--
	c := &r.contributions[i]
	if r.broken != nil {
		r.freeContribution(c)
		return taken
	}
	c.state = waiting
	c.wait, _ = r.waits.Add(now, e) // never full, see hasRoom
	r.waits.Sent(now, 1)
	return taken
}

// awaitsResult reports whether a result belongs to a contribution: by sequence number, or
// by round if it is for all workers. The network may delay results of earlier rounds.
func (r *rounds) awaitsResult(c *contribution, h wire.Header) bool {
	if h.Flags&wire.FlagAll != 0 {
		return r.wasSent(c) && h.Seq == c.round
	}
	return r.wasSent(c) && h.Seq == c.seq
}

func (r *rounds) takeGroupSums(h wire.Header, payload []byte) verdict {
	if _, err := wire.StripeCount(payload); err != nil {
		return malformed
	}
	i := int(wire.StripeAt(payload, 0).Slot(0)) * wire.Lanes / max(r.groupLen, 1)
	if i >= r.groups || !r.awaitsResult(&r.contributions[i], h) {
		return stray
	}
	if r.active && !packer.TakeVector(payload, r.firstSlot(i), r.groupPart(r.call.sums, i), r.call.numbers) {
		return malformed
	}
	r.settleContribution(i)
	return taken
}

// takeScale handles the decision on the scale.
func (r *rounds) takeScale(h wire.Header, payload []byte) verdict {
	decision, err := wire.ParseScale(payload)
	c := &r.contributions[r.groups]
	switch {
	case err != nil:
		return malformed
	case !r.awaitsResult(c, h) || decision.Iteration != c.round:
		return stray
	case decision.Exponent == wire.InfiniteExponent || r.active && decision.Exponent < r.call.exponent:
		return malformed // the largest of all is at least our own
	}
	r.decided = decision.Exponent
	r.settleContribution(r.groups)
	return taken
}

// settleContribution completes a contribution with its result.
func (r *rounds) settleContribution(i int) {
	w := r.w
	r.heard = w.now
	c := &r.contributions[i]
	if c.state == sent {
		r.flow.window.Ack(w.now, c.seq)
		r.unacked--
	} else {
		r.waits.Ack(w.now, c.wait)
	}
	r.freeContribution(c)
	c.round++
	if !r.active {
		return
	}
	w.stats.Results++
	if r.finished++; r.finished == r.call.end-r.call.first {
		r.endCall(nil)
	}
}

func (r *rounds) freeContribution(c *contribution) {
	r.w.link.Free(c.buf)
	c.state = idle
}

// contributionRefused ends the rounds: the other workers wait for this one in vain.
func (r *rounds) contributionRefused(i int, payload []byte) verdict {
	w := r.w
	why, err := wire.ParseRefusal(payload)
	if err != nil {
		return malformed
	}
	r.heard = w.now
	w.stats.Refusals[min(int(why.Code), len(w.stats.Refusals)-1)]++
	refusal := w.peerError(r.flow, why)
	c := &r.contributions[i]
	if i < r.groups {
		n := wire.HotLen(packer.VectorStripes(min(r.groupLen, r.slots-i*r.groupLen)))
		refusal.Key, refusal.KeyKnown = w.refusedKey(r.flow, nil, w.link.Payload(c.buf)[:n], why)
	}
	r.breakRounds(refusal) // reports the contribution as unacknowledged, and frees the waiting ones
	if c.state == sent {
		r.flow.window.Refuse(w.now, c.seq)
		r.unacked--
		r.freeContribution(c)
	}
	return taken
}
