// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// alloc returns a free transmit buffer. A link has more of them than operations are in flight, but
// its device may still read those of earlier ones.
func (r *Reducer[T]) alloc() (link.Buf, error) {
	b, ok := r.link.Alloc()
	if ok {
		return b, nil
	}
	if err := r.flush(); err != nil { // their buffers become free
		return 0, err
	}
	for until := time.Now().Add(r.cfg.Limit); !ok; b, ok = r.link.Alloc() {
		if time.Now().After(until) {
			return 0, r.noRoom()
		}
		if _, err := r.receive(); err != nil {
			return 0, err
		}
		if err := r.sleep(sendRetry); err != nil {
			return 0, err
		}
	}
	return b, nil
}

// send sends a contribution or TAKEN, for the first time or again. What the link has no room for is
// sent later.
func (r *Reducer[T]) send(g *group, now instant, again bool) error {
	n, length := 0, wire.HotLen(r.stripes)
	if g.unconfirmed {
		length = r.writeTaken(g)
	}
	if length > 0 {
		var err error
		r.out[0] = link.Frame{Buf: g.buf, Retx: again, Len: length, To: r.path}
		if n, err = r.link.Send(r.out[:1]); err != nil {
			return err
		}
	}
	g.repeated = g.repeated || again
	r.await(g, now, n == 1)
	return nil
}

// await says when an operation is due that was given to the link, which has sent it or had no room.
func (r *Reducer[T]) await(g *group, now instant, sent bool) {
	g.sent, g.due = sent, now.add(g.wait)
	if !sent {
		g.due = now.add(sendRetry)
	}
	r.wakeAt = min(r.wakeAt, g.due)
}

// repeatDue sends again what is due, and finds the time when something will be. It fails when
// repetitions have brought no result for too long.
func (r *Reducer[T]) repeatDue(now instant) error {
	if now < r.wakeAt {
		return nil
	}
	r.wakeAt = never
	awaited := r.first // the caller's next Wait needs it, or if there is none, its next Start
	if awaited == r.sent {
		awaited = r.oldest
	}
	for b := r.oldest; b < r.sent; b++ {
		g := r.groupOf(b)
		if g.isOver() {
			continue
		}
		if now < g.due {
			r.wakeAt = min(r.wakeAt, g.due)
			continue
		}
		if b == awaited {
			if g.sent {
				r.silent, g.stuck = r.silent+g.wait, 0
			} else {
				r.silent, g.stuck = r.silent+sendRetry, g.stuck+sendRetry
			}
			if r.silent >= r.cfg.Limit {
				return r.missing(g)
			}
		}
		if g.sent {
			g.wait = min(2*g.wait, maxTimeout)
			g.ignored++
			r.stats.Repeats++
		}
		if err := r.send(g, now, g.sent || g.repeated); err != nil {
			return err
		}
	}
	return nil
}

// hurry repeats the bundles before one that has its result: their frames left before its own, so
// they are lost, or their results are.
func (r *Reducer[T]) hurry(before uint64, now instant) error {
	for b := r.first; b < before; b++ {
		g := r.groupOf(b)
		if g.state != waiting || g.hurried || !g.sent {
			continue
		}
		g.hurried = true
		r.stats.Hurried++
		if err := r.send(g, now, true); err != nil {
			return err
		}
	}
	return nil
}

// receive takes what has arrived, and returns how many payloads.
func (r *Reducer[T]) receive() (int, error) {
	n, err := r.link.Receive(r.pkts[:])
	if n == 0 || err != nil {
		return 0, err
	}
	now, overtaken := r.now(), r.first
	for i := range r.pkts[:n] {
		g, v, err := r.take(&r.pkts[i])
		if err != nil {
			return n, err
		}
		if g != nil {
			overtaken = max(overtaken, g.bundle)
			if err := r.settle(g, now); err != nil {
				return n, err
			}
		}
		switch v {
		case malformed:
			r.stats.Malformed++
		case stray:
			r.stats.Stray++
		}
	}
	return n, r.hurry(overtaken, now)
}

// verdict classifies a received payload.
type verdict uint8

const (
	taken     verdict = iota
	malformed         // not a valid answer
	stray             // wrong source, job, sender, epoch or number: late, or forged
)

// take handles an answer, and returns the bundle of which it is the result. An answer that matches
// nothing that waits changes nothing. The error is the end of the Reducer.
func (r *Reducer[T]) take(p *link.Packet) (*group, verdict, error) {
	h, err := wire.ParseHeader(p.Payload)
	if err != nil {
		return nil, malformed, nil
	}
	if p.Src.AddrPort() != r.from || h.Job != r.cfg.Job || h.Epoch != r.cfg.Epoch {
		return nil, stray, nil
	}
	if h.Type == wire.TypeAck && h.Flags&^wire.FlagAll == wire.FlagSum {
		g, v := r.takeSums(h, p.Payload)
		if g != nil && !r.agrees(g) {
			return nil, v, &OutOfStepError{Op: g.op, Count: g.count}
		}
		return g, v, nil
	}
	if h.Type == wire.TypeAck && h.Flags&wire.FlagTaken != 0 {
		return nil, r.takeConfirmation(h, p.Payload), nil
	}
	g := r.waitingAt(h.Seq)
	if g == nil || h.Sender != r.cfg.Sender {
		return nil, stray, nil
	}
	switch h.Type {
	case wire.TypeError:
		why, err := wire.ParseRefusal(p.Payload)
		if err != nil {
			return nil, malformed, nil
		}
		return nil, taken, r.refused(g, why)
	case wire.TypeAck:
		if _, err := wire.ParseAck(p.Payload, h); err != nil || h.Flags&^wire.FlagCover != 0 {
			return nil, malformed, nil
		}
		if g.state != waiting {
			return nil, stray, nil
		}
		g.answered, g.ignored, g.contributed = true, 0, wire.Cover(p.Payload, h)
		return nil, taken, nil
	}
	return nil, stray, nil
}

// waitingAt returns the bundle that is not over and whose frame has a number, or nil.
func (r *Reducer[T]) waitingAt(seq uint32) *group {
	behind := uint32(r.sent) + wire.FirstSeq - seq // 1 for the newest
	if behind == 0 || uint64(behind) > r.sent-r.oldest {
		return nil
	}
	if g := r.groupOf(r.sent - uint64(behind)); !g.isOver() {
		return g
	}
	return nil
}

// takeSums handles a result: for all workers, with the number of its round, or for this one, with
// that of its frame. The network may delay results of earlier rounds.
func (r *Reducer[T]) takeSums(h wire.Header, payload []byte) (*group, verdict) {
	if stripes, err := wire.StripeCount(payload); err != nil || stripes != r.stripes {
		return nil, malformed
	}
	slot := int(wire.StripeAt(payload, 0).Slot(0))
	if slot%r.stripes != 0 || slot/r.stripes >= len(r.groups) {
		return nil, malformed
	}
	g := &r.groups[slot/r.stripes]
	to, number := r.cfg.Sender, g.seq
	if h.Flags&wire.FlagAll != 0 {
		to, number = wire.AllSenders, g.round
	}
	if h.Sender != to || g.state != waiting || h.Seq != number {
		return nil, stray
	}
	for i := range r.stripes {
		s := wire.StripeAt(payload, i)
		if s.Mask() != wire.LaneMask || int(s.Slot(0)) != slot+i {
			return nil, malformed
		}
		sums := g.sums[i*wire.Lanes:][:wire.Lanes]
		for lane := range sums {
			sums[lane] = s.Bits(lane)
		}
	}
	return g, taken
}

// settle gives a bundle its result, and in mode acked says so.
func (r *Reducer[T]) settle(g *group, now instant) error {
	g.state = done
	r.link.Free(g.buf)
	r.stats.Frames++
	r.stats.Results += uint64(g.count)
	r.silent = 0
	if !g.repeated { // Karn's rule
		r.rtt.sample(now.sub(g.started))
	}
	g.unconfirmed = r.cfg.Shape.Acked
	r.advance()
	if !g.unconfirmed {
		return nil
	}
	g.wait, g.repeated, g.hurried = r.rtt.timeout(), false, false
	g.answered, g.ignored, g.contributed = false, 0, 0
	return r.send(g, now, false)
}

// advance finds the first bundle without a result, and the first that is not over.
func (r *Reducer[T]) advance() {
	for r.first < r.sent && r.groupOf(r.first).state == done {
		r.first++
	}
	for r.oldest < r.sent && r.groupOf(r.oldest).isOver() {
		r.oldest++
	}
}

// isOver reports whether nothing is to be sent any more for a bundle that has been sent.
func (g *group) isOver() bool { return g.state == done && !g.unconfirmed }

// noRoom returns the error for a link that has no room for frames.
func (r *Reducer[T]) noRoom() error {
	last := ""
	if err := r.link.Stats().LastError; err != nil {
		last = fmt.Sprintf("; the last error of sending was: %v", err)
	}
	return fmt.Errorf("reducer: the link has not sent earlier frames for %v: is its interface up?%s", r.cfg.Limit, last)
}
