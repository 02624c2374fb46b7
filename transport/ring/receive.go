// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// receive takes what has arrived, answers it, and returns how many payloads.
func (r *Ring) receive() (int, error) {
	n, err := r.link.Receive(r.pkts[:])
	if n == 0 || err != nil {
		return 0, err
	}
	answers := false
	now := r.now()
	for i := range r.pkts[:n] {
		p := &r.pkts[i]
		r.take(p, now)
		answers = answers || p.Reply > 0
	}
	if answers {
		if err := r.link.Reply(r.pkts[:n]); err != nil {
			return n, err
		}
	}
	switch { // after the answers, which may tell the neighbour too
	case r.differs != nil:
		return n, r.differs
	case r.refused != nil:
		return n, r.refused
	}
	return n, nil
}

// take handles a payload, and may write an answer over it.
func (r *Ring) take(p *link.Packet, now retransmit.Time) {
	h, err := wire.ParseHeader(p.Payload)
	switch {
	case errors.Is(err, wire.ErrTruncated):
		r.stats.Malformed++
		return
	case h.Type == wire.TypeAck || h.Type == wire.TypeError || h.Type == wire.TypeRows || h.Type == wire.TypeFound ||
		h.Type == wire.TypeSums:
		r.takeAnswer(p, h, err, now)
		return
	}
	n, refusal := r.answer(p, h, err)
	if refusal.Code != 0 {
		r.stats.Refused++
		n = len(wire.PutError(p.Payload[:wire.ErrorLen], h, refusal))
	}
	p.Reply = n
}

// takeAnswer handles the successor's answer to a frame.
func (r *Ring) takeAnswer(p *link.Packet, h wire.Header, version error, now retransmit.Time) {
	fromNext, fromPrev := p.Src.AddrPort() == r.next.Addr, p.Src.AddrPort() == r.prev.Addr
	if version != nil || !fromNext && !fromPrev || h.Job != r.cfg.Job || h.Epoch != r.cfg.Epoch ||
		int(h.Sender) != r.cfg.Place {
		r.stats.Stray++
		return
	}
	switch h.Type {
	case wire.TypeAck:
		if _, err := wire.ParseAck(p.Payload, h); err != nil || h.Flags&^wire.FlagCover != 0 {
			r.stats.Malformed++
			return
		}
		if !fromNext {
			r.stats.Stray++
			return
		}
		r.next.silent = 0
		before := r.window.Outstanding()
		if e, ok := r.window.Ack(now, h.Seq); ok {
			r.free(e)
		}
		r.window.Cover(now, h.Seq, wire.Cover(p.Payload, h), r.free)
		if r.window.Outstanding() < before {
			r.ackedAt = now
			r.progress()
		}
	case wire.TypeError:
		why, err := wire.ParseRefusal(p.Payload)
		if err != nil {
			r.stats.Malformed++
			return
		}
		if _, outstanding := r.window.Sending(h.Seq); fromNext && outstanding {
			r.refused = &RefusedError{Neighbour: r.next.Worker, Place: r.cfg.Place, Refusal: why}
			return
		}
		if fromNext {
			r.next.refusal = why
		}
		if fromPrev {
			r.prev.refusal = why
		}
	default:
		r.stats.Stray++
	}
}

// free ends a frame that the successor has.
func (r *Ring) free(e retransmit.Entry) { r.link.Free(link.Buf(e.Cookie)) }

// answer handles a request. It returns the length of the answer that it has written over it, 0 for
// none, or a refusal. The order of the checks is docs/wire.md's.
func (r *Ring) answer(p *link.Packet, h wire.Header, version error) (int, wire.Refusal) {
	switch {
	case version != nil:
		return 0, wire.Refusal{Code: wire.CodeWrongVersion, Value: wire.Version}
	case h.Type != wire.TypeBlock:
		return 0, wire.Refusal{Code: wire.CodeType}
	case h.Job != r.cfg.Job:
		return 0, wire.Refusal{Code: wire.CodeUnknownJob}
	}
	isPrev := p.Src.AddrPort() == r.prev.Addr && int(h.Sender) == r.prev.Place
	isNext := p.Src.AddrPort() == r.next.Addr && int(h.Sender) == r.next.Place
	if !isPrev && !isNext {
		return 0, wire.Refusal{Code: wire.CodeUnknownSender}
	}
	if h.Epoch != r.cfg.Epoch {
		return 0, wire.Refusal{Code: wire.CodeWrongEpoch, Value: uint32(r.cfg.Epoch)}
	}
	b, body, err := wire.ParseBlock(p.Payload)
	if err == nil && b.Count == 0 {
		return r.takePresence(p, b, isPrev, isNext), wire.Refusal{}
	}
	switch {
	case !isPrev:
		return 0, wire.Refusal{Code: wire.CodeUnknownSender}
	case int32(h.Seq-r.newest) > wire.DefaultWindow:
		return 0, wire.Refusal{Code: wire.CodeWindow, Value: r.newest + wire.DefaultWindow}
	}
	if newer(h.Seq, r.newest) {
		r.newest = h.Seq
	}
	switch {
	case err != nil:
		return 0, wire.Refusal{Code: wire.CodeLength, Value: uint32(r.link.Limits().MaxPayload)}
	case int(b.Bound) != r.cfg.Codec.Bound || int(b.Scale) != r.cfg.Codec.Scale:
		return 0, wire.Refusal{Code: wire.CodeCoding}
	}
	r.prev.silent = 0
	fresh := r.seen.Fresh(h.Seq)
	if !fresh {
		if refusal, refused := r.seen.Refusal(h.Seq); refused {
			return 0, refusal
		}
		r.stats.Duplicates++
	} else if refusal := r.apply(b, body); refusal.Code != 0 {
		r.seen.Refuse(h.Seq, refusal) // a copy must not be applied when the reason is gone
		return 0, refusal
	} else {
		r.seen.Mark(h.Seq)
		r.stats.Applied++
	}
	switch {
	case h.Flags&(wire.FlagQuiet|wire.FlagCover) == 0:
		return len(wire.PutAck(p.Payload, h)), wire.Refusal{}
	case fresh && h.Flags&wire.FlagQuiet != 0 && h.Seq == r.newest && r.seen.Applied(h.Seq-1):
		return 0, wire.Refusal{} // a later frame asks for an ACK; if it came first, this one is not the newest
	}
	return len(wire.PutCover(p.Payload, h, r.seen.Cover(h.Seq))), wire.Refusal{}
}

// takePresence notes which operation a neighbour is in. It answers one whose terms differ with this
// worker's own.
func (r *Ring) takePresence(p *link.Packet, b wire.Block, isPrev, isNext bool) int {
	of := &r.next
	if !isNext {
		of = &r.prev
	}
	theirs := Terms{
		Values: int(b.First), Workers: int(b.Step), Codec: codec.Config{Bound: int(b.Bound), Scale: int(b.Scale)},
	}
	ours := Terms{Values: r.cfg.Values, Workers: len(r.cfg.Workers), Codec: r.cfg.Codec}
	if theirs != ours {
		r.differs = &MismatchError{Neighbour: of.Worker, Place: r.cfg.Place, Theirs: theirs, Ours: ours}
		r.putPresence(p.Payload)
		return wire.BlockHead
	}
	if isPrev {
		r.prev.silent = 0
		if newer(b.Operation, r.prev.op) {
			r.prev.op = b.Operation
		}
	}
	if isNext {
		r.next.silent = 0
		if newer(b.Operation, r.next.op) {
			r.next.op = b.Operation
			r.progress()
		}
	}
	return 0
}

// apply adds or takes the values of a fresh frame.
func (r *Ring) apply(b wire.Block, body []byte) wire.Refusal {
	if r.values == nil || b.Operation != r.op {
		return wire.Refusal{Code: wire.CodeRound, Value: r.op}
	}
	wrong := wire.Refusal{Code: wire.CodeLength, Value: uint32(r.link.Limits().MaxPayload)}
	step, first, count := int(b.Step), int(b.First), int(b.Count)
	if step < 1 || step > r.steps {
		return wrong
	}
	begin, end := r.received(step)
	if first < begin || first > end || count > end-first || count > end-begin-r.got[step] {
		return wrong
	}
	adds := step < len(r.cfg.Workers)
	to := r.values[first:][:count]
	got := to
	if adds || r.cfg.Codec.Bound != 0 { // malformed codes must not spoil values
		got = r.scratch[:count]
	}
	if r.cfg.Codec.Bound == 0 {
		wire.Floats(got, body)
	} else if r.codec.Decode(got, body) != nil {
		return wrong
	}
	if adds {
		for i, v := range got {
			to[i] += v
		}
	} else {
		copy(to, got)
	}
	r.prev.op = r.op
	r.got[step] += count
	switch {
	case r.got[step] == end-begin:
		r.whole[step] = end - begin
	case first == begin+r.whole[step]:
		r.whole[step] += count
	}
	r.left -= count
	r.moved = true
	r.progress()
	return wire.Refusal{}
}

// newer reports whether a is after b in serial-number arithmetic.
func newer(a, b uint32) bool { return int32(a-b) > 0 }
