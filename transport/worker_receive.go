// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"math/bits"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// How a worker receives. All of this file runs in the worker's goroutine, once for each payload
// that a turn has received (worker_loop.go). The functions are in the order in which answers are
// processed:
//
//  1. receiveAnswer counts what is no answer to this worker, and ignores it.
//  2. takeAnswer compares it with what was sent to the peer from which it comes (flowFrom). Answers
//     to rounds go on in rounds_receive.go.
//  3. receiveAck, receiveRows and receiveError take the answered frames out of the flow's window;
//     so do receiveFound (row_numbers.go) and receiveSums (step.go).
//  4. frameAcknowledged and frameAnswered free the frame's buffer, and settleOperation
//     (operation.go) ends the operation with its last frame.
//
// A received payload belongs to the link, and is valid until the turn ends: what callers are to get
// is copied into their slices. A slice is written only while its caller waits (operation.open).

// verdict classifies a received payload.
type verdict uint8

const (
	taken     verdict = iota // an answer to a sent frame, or a duplicate of one
	malformed                // not a valid answer
	stray                    // wrong source, job, sender, epoch or sequence number
	other                    // does not concern the rounds
)

// receiveAnswer handles an answer. An answer that matches no sent frame is counted and
// ignored: it may be a late answer to a predecessor, or forged.
func (w *Worker) receiveAnswer(p *link.Packet) {
	switch w.takeAnswer(p) {
	case malformed:
		w.stats.Malformed++
	case stray:
		w.stats.Stray++
	}
}

func (w *Worker) takeAnswer(p *link.Packet) verdict {
	h, err := wire.ParseHeader(p.Payload)
	if err != nil {
		return malformed
	}
	f := w.flowFrom(p.Src, h.Job)
	if f == nil || h.Epoch != f.epoch {
		return stray
	}
	if w.rounds != nil && f == w.rounds.flow {
		if v := w.rounds.takeRoundAnswer(h, p.Payload); v != other {
			return v
		}
	}
	if h.Sender != w.cfg.Sender {
		return stray
	}
	if int32(h.Seq-f.window.NextUnsent()) >= 0 {
		return stray // an answer to a frame that was not sent yet
	}
	if w.draw.Draws(h.Seq) {
		return w.measureAnswer(f, h, p)
	}
	return w.processAnswer(f, h, p.Payload)
}

func (w *Worker) processAnswer(f *flow, h wire.Header, payload []byte) verdict {
	switch h.Type {
	case wire.TypeAck:
		return w.receiveAck(f, h, payload)
	case wire.TypeError:
		return w.receiveError(f, h, payload)
	case wire.TypeRows:
		return w.receiveRows(f, h, payload)
	case wire.TypeFound:
		return w.receiveFound(f, h, payload)
	case wire.TypeSums:
		return w.receiveSums(f, h, payload)
	}
	return stray
}

// flowFrom returns the flow to which answers of a job from an address belong, or nil.
func (w *Worker) flowFrom(src wire.Endpoint, job uint16) *flow {
	for _, f := range w.flows {
		if f != nil && job == f.job && src.Port == f.to.Port && src.IP == f.to.IP {
			return f
		}
	}
	return nil
}

func (w *Worker) receiveAck(f *flow, h wire.Header, payload []byte) verdict {
	stripes, err := wire.ParseAck(payload, h)
	if err != nil {
		return malformed
	}
	if e, ok := f.window.Ack(w.now, h.Seq); ok {
		w.takeAck(f, h, payload, stripes, e)
	}
	f.window.Cover(w.now, h.Seq, wire.Cover(payload, h), f.covered)
	return taken
}

func (w *Worker) takeAck(f *flow, h wire.Header, payload []byte, stripes int, e retransmit.Entry) {
	o := w.ops[e.Owner]
	switch {
	case o.pull:
		o.recordFailure(w.peerError(f, fmt.Errorf("%w: an ACK to a pull", ErrAnswer)))
	case o.sums != nil && f.hot && stripes == 0:
		o.recordFailure(w.peerError(f, fmt.Errorf("%w: an ACK without sums to a push that wants them", ErrAnswer)))
	case o.sums != nil && stripes > 0:
		w.takePushSums(h.Flags, payload, stripes)
	}
	if f.hot {
		w.hotAcknowledged(o, e)
		return
	}
	w.frameAcknowledged(o, e)
}

// takePushSums stores the sums of an acknowledgement by rank.
func (w *Worker) takePushSums(flags wire.Flags, payload []byte, stripes int) {
	layout := packer.LaneAligned
	if flags&wire.FlagDense != 0 {
		layout = packer.Dense
	}
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		for mask := s.Mask(); mask != 0; mask &= mask - 1 {
			lane := bits.TrailingZeros32(mask)
			if rank := layout.Rank(s, lane); int(rank) < len(w.sums) {
				w.sums[rank] = w.numbers.Float32(s.Bits(lane))
			}
		}
	}
}

func (w *Worker) receiveRows(f *flow, h wire.Header, payload []byte) verdict {
	rows, err := wire.ParseRows(payload, wire.TypeRows)
	if err != nil {
		return malformed
	}
	e, ok := f.window.Ack(w.now, h.Seq)
	if !ok {
		return taken
	}
	o := w.ops[e.Owner]
	first := framePlace(e.Cookie).firstKey()
	d := w.cfg.Dim
	switch n := w.keysInFrame(o, f.serverIndex(), first); {
	case !o.pull || o.find != nil:
		o.recordFailure(w.peerError(f, fmt.Errorf("%w: rows, which no pull has asked for", ErrAnswer)))
	case rows.Count != n || rows.Dim != d:
		o.recordFailure(w.peerError(f, fmt.Errorf("%w: %d rows of dimension %d to a pull of %d of dimension %d", ErrAnswer,
			rows.Count, rows.Dim, n, d)))
	case o.open:
		for i := range n {
			rows.Row(i, o.values[o.keyPosition(first+i)*d:])
		}
	}
	w.frameAcknowledged(o, e)
	return taken
}

func (w *Worker) receiveError(f *flow, h wire.Header, payload []byte) verdict {
	r, err := wire.ParseRefusal(payload)
	if err != nil {
		return malformed
	}
	if w.heldRefusal(f, r.Code) {
		w.stats.Refusals[r.Code]++
		f.held = r
		return taken
	}
	e, ok := f.window.Refuse(w.now, h.Seq)
	if !ok {
		return taken
	}
	w.stats.Refusals[min(int(r.Code), len(w.stats.Refusals)-1)]++
	o, payload := w.ops[e.Owner], w.link.Payload(framePlace(e.Cookie).frameBuffer())[:e.Len]
	if o.step != nil {
		w.frameAcknowledged(o, e)
		if o.step == w.step {
			w.endStep(w.peerError(f, r))
		}
		return taken
	}
	if r.Code == wire.CodeNumbering && w.sendAgain(o, f.serverIndex(), payload) {
		w.link.Free(framePlace(e.Cookie).frameBuffer()) // the frame stays outstanding in its push
		return taken
	}
	if f.hot && w.log != nil {
		w.log.releaseFrame(int(e.Len))
	}
	if r.Code == wire.CodeOverflow && f.hot && w.unrounded {
		w.sendCold(f, o, payload)
		w.link.Free(framePlace(e.Cookie).frameBuffer())
		return taken
	}
	refusal := w.peerError(f, r)
	refusal.Key, refusal.KeyKnown = w.refusedKey(f, o, payload, r)
	refusal.Unknown = !r.Code.Final() && !o.pull
	if w.refusal == nil && !o.pull && !o.ofFeed() && (o.sums == nil || !o.open) {
		w.refusal = refusal // the push's caller may not be waiting
	}
	o.recordFailure(refusal)
	if refusal.Unknown {
		o.unknown++
	} else {
		o.refused++
	}
	w.frameAnswered(o, e)
	return taken
}

// refusedKey finds the refused row in the frame.
func (w *Worker) refusedKey(f *flow, o *operation, payload []byte, r wire.Refusal) (key uint64, ok bool) {
	switch r.Code {
	case wire.CodeSlotRange, wire.CodeNotFinite, wire.CodeOverflow, wire.CodeRowNumber:
	default:
		return 0, false
	}
	if f.hot {
		stripe, lane := int(r.Index)/wire.Lanes, int(r.Index)%wire.Lanes
		if stripe >= (len(payload)-wire.HeaderLen)/wire.StripeLen {
			return 0, false
		}
		rank := w.rankAt(f, wire.StripeAt(payload, stripe), lane) / uint32(w.cfg.Dim)
		if int(rank) >= w.cfg.HotSet.Len() {
			return 0, false
		}
		return w.cfg.HotSet.Key(rank), true
	}
	h, _ := wire.ParseHeader(payload) // our own frame
	rows, err := w.decoder.parseRows(payload, h)
	row := int(r.Index)
	if r.Code != wire.CodeRowNumber {
		row /= w.cfg.Dim
	}
	if err != nil || row >= rows.Count {
		return 0, false
	}
	if h.Type == wire.TypeColdAt {
		key, ok = o.keysByNumber(f.serverIndex())[rows.Number(row)]
		return key, ok
	}
	return rows.Key(row), true
}

// rankAt returns the rank in the hot set of a pair in a frame of the worker.
func (w *Worker) rankAt(f *flow, s *wire.Stripe, lane int) uint32 {
	rank := w.cfg.Layout.Rank(s, lane)
	if f.shares != nil {
		rank, _ = f.shares.Rank(f.share, rank)
	}
	return rank
}

func (w *Worker) peerError(f *flow, err error) *PeerError {
	return &PeerError{Role: f.role, Addr: f.to.AddrPort(), Job: f.job, Sender: w.cfg.Sender, Err: err}
}

// hotAcknowledged is frameAcknowledged of a hot frame, which is kept until the server has it.
func (w *Worker) hotAcknowledged(o *operation, e retransmit.Entry) {
	w.logAcknowledged(framePlace(e.Cookie).frameBuffer(), e.Len)
	w.frameAcknowledged(o, e)
}

func (w *Worker) frameAcknowledged(o *operation, e retransmit.Entry) {
	o.acked++
	w.frameAnswered(o, e)
}

// frameAnswered returns the frame's buffer and settles its operation.
func (w *Worker) frameAnswered(o *operation, e retransmit.Entry) {
	w.link.Free(framePlace(e.Cookie).frameBuffer())
	o.outstanding--
	if o.times.drawn {
		o.times.noteSending(e)
	}
	if o.pull && o.failure != nil {
		w.abandonOperation(o) // the rest is useless
	}
	w.settleOperation(o)
}

// copySums gives the caller of PushSum the sums of its hot rows.
func (w *Worker) copySums(o *operation) {
	if w.cfg.HotSet == nil {
		return
	}
	d := w.cfg.Dim
	for i, key := range o.keys {
		if rank, ok := w.cfg.HotSet.Rank(key); ok {
			copy(o.sums[i*d:][:d], w.sums[int(rank)*d:])
		}
	}
}
