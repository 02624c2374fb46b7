// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// How a worker sends. All of this file runs in the worker's goroutine, which calls it once a turn
// (worker_loop.go) and takes no lock. The functions are in the order in which frames are processed:
//
//  1. packPushes takes the next of the pushes that callers have handed over (worker.go, queue.go,
//     feed.go): beginPush passes it to the packer, fillFrame makes its frames, one after the other,
//     and sealPush ends it. askForRows makes the frames of pulls.
//  2. allocFrame finds room for each: a number in the flow's window and a buffer of the link.
//     Without room, the push or pull waits for the next turn.
//  3. enqueueFrame writes the header, enters the frame in the window and queues it in out. Frames
//     of rounds (rounds.go) and of steps (step.go) come in here too.
//  4. transmit passes out to the link, and then what repeatLate has found late (worker_loop.go).
//
// A caller's slices belong to the worker until its push is in frames, or its pull has ended. A
// buffer belongs to the worker from allocFrame to frameAnswered (worker_receive.go; for frames of
// rounds, to freeContribution): until then its frame may be sent again, and its rows stay as they
// are.

// packPushes fills frames from pushes while there is room, and reports whether it did
// anything.
func (w *Worker) packPushes() (any bool) {
	for len(w.pushes) > 0 {
		if !w.pushes[0].begun {
			any = true
			w.beginDivision()
			w.groupPushes()
			if !w.beginPush(w.pushes[0]) {
				continue
			}
		}
		o := w.pushes[0]
		for w.packer.Next() != 0 || w.hotRows.rowsLeft() > 0 {
			if !w.fillFrame(o) {
				return any
			}
			any = true
		}
		w.sealPush(o)
	}
	return any
}

// beginPush passes a push to the packer, or ends it if it is refused as a whole.
func (w *Worker) beginPush(o *operation) bool {
	var err error
	switch {
	case o.sums != nil && w.isDirect():
		err = errNoAggregator
	case o.added:
		err = w.beginSum(o)
	case o.cold:
		err = w.packer.BeginCold(o.keys, o.values)
	case o.prepared != nil:
		err = w.packer.BeginPrepared(o.values, o.prepared)
	case o.members != nil && o.members[0].prepared != nil:
		err = w.packer.BeginPrepared(o.values, w.groupPrepared...)
	default:
		err = w.packer.Begin(o.keys, o.values)
	}
	if err == nil && w.cfg.NoServer {
		err = w.refuseCold()
	}
	if err == nil && w.cfg.Mode == aggregator.Sync && w.packer.Next() == wire.TypeHot {
		err = fmt.Errorf("%w: a push of hot rows, which Reduce takes", ErrMode)
	}
	if err != nil && o.members != nil {
		w.dissolveGroup(o) // the error may concern one member only
		return false
	}
	if o.released == nil {
		w.registerOperation(o) // from the queue, a group, or sent again
	}
	o.noteNumbers()
	o.begun = true
	if err == nil {
		if n := w.packer.Vanished(); n > 0 && o.parent == nil {
			w.countVanished(o, n)
		}
		return true
	}
	w.pushes = slices.Delete(w.pushes, 0, 1)
	o.sealed = true
	o.recordFailure(err)
	if o.queued && o.owner == nil && w.refusal == nil {
		w.refusal = err // its ticket may be dropped
	}
	o.refuseWhole()
	w.settleOperation(o)
	return false
}

// countVanished counts gradients of a push that are rounded to 0.
func (w *Worker) countVanished(o *operation, n int) {
	first := w.stats.Vanished == 0
	w.stats.Vanished += uint64(n)
	if !first || w.cfg.Vanish == nil {
		return
	}
	pushes := o.members
	if len(pushes) == 0 {
		pushes = []*operation{o}
	}
	for _, m := range pushes {
		if at := w.packer.FirstVanished(m.values); at >= 0 {
			w.cfg.Vanish(m.keys[at/w.cfg.Dim], m.values[at])
			return
		}
	}
}

// fillFrame queues the next frame of a push, and returns false if there is no room.
func (w *Worker) fillFrame(o *operation) bool {
	if w.hotRows.rowsLeft() > 0 {
		return w.sendRows(&w.hotRows, o)
	}
	var f *flow
	h := wire.Header{Type: w.packer.Next(), Flags: wire.FlagQuiet}
	if h.Type == wire.TypeHot {
		if f = w.flows[w.hotAt[w.packer.To()]]; f == nil {
			return w.fillDirect(o)
		}
		if w.mustWait() {
			return false
		}
	}
	if h.Type != wire.TypeHot {
		f = w.flows[flowCold+w.packer.To()]
	} else {
		if w.cfg.Layout == packer.Dense {
			h.Flags |= wire.FlagDense
		}
		if o.sums != nil {
			h.Flags = h.Flags&^wire.FlagQuiet | wire.FlagWantSum
		}
	}
	b, ok := w.allocFrame(f)
	if !ok {
		return false
	}
	payload, err := w.packer.Fill(w.link.Payload(b))
	if err != nil {
		panic(err) // makeWorker has checked that frames fit the link's payloads
	}
	sent := w.packer.Sent()
	w.countHot(o, sent)
	cold := uint64(sent.ColdRows - o.sent.ColdRows)
	w.stats.RowsCold += cold
	w.stats.PairsCold += cold * uint64(w.cfg.Dim)
	if h.Type == wire.TypeColdAt {
		w.stats.RowsAt += cold
	}
	if cold > 0 {
		w.stats.BytesCold += uint64(len(payload))
	}
	if sent.CodedValues > o.sent.CodedValues {
		h.Flags |= wire.FlagCoded
	}
	w.stats.CodedValues += uint64(sent.CodedValues - o.sent.CodedValues)
	w.stats.CodedBytes += uint64(sent.CodedBytes - o.sent.CodedBytes)
	o.sent = sent
	if h.Type == wire.TypeHot && w.log != nil {
		w.log.reserveFrame(len(payload))
	}
	w.enqueueFrame(f, h, payload, o, placeOf(b, 0))
	return true
}

// countHot counts the hot pairs that a push has sent since it was counted last.
func (w *Worker) countHot(o *operation, sent packer.Sent) {
	n := uint64(sent.HotPairs - o.sent.HotPairs)
	w.stats.PairsHot += n
	if !o.added { // else beginSum has counted those of which these are sums
		w.stats.PairsPushed += n
	}
}

// sealPush ends the packing of a push.
func (w *Worker) sealPush(o *operation) {
	w.pushes = slices.Delete(w.pushes, 0, 1)
	o.sealed, o.complete = true, true
	for _, m := range o.members {
		m.sealed = true
	}
	if o.sums == nil {
		o.releaseSlices()
	}
	w.settleOperation(o)
}

// askForRows fills frames with keys of pulls while there is room, and reports whether it did.
func (w *Worker) askForRows() (any bool) {
	for len(w.pulls) > 0 {
		o := w.pulls[0]
		if w.cfg.NoServer {
			w.refusePull(o)
			any = true
			continue
		}
		if o.asked < len(o.keys) {
			server := o.serverOf(o.asked)
			f := w.flows[flowCold+server]
			b, ok := w.allocFrame(f)
			if !ok {
				return any
			}
			n := w.keysInFrame(o, server, o.asked)
			payload := w.link.Payload(b)[:wire.PullLen(n)]
			kind := wire.TypePull
			if o.find != nil {
				kind = wire.TypeFind
				w.stats.Finds++
			} else {
				w.stats.KeysPulled += uint64(n)
			}
			rows := wire.PutRows(payload, kind, n, w.cfg.Dim)
			for i := range n {
				rows.SetKey(i, o.keys[o.keyPosition(o.asked+i)])
			}
			w.enqueueFrame(f, wire.Header{Type: kind}, payload, o, placeOf(b, o.asked))
			o.asked += n
			any = true
		}
		if o.asked == len(o.keys) {
			o.complete, o.sealed = true, true
			w.pulls = slices.Delete(w.pulls, 0, 1)
			w.settleOperation(o)
		}
	}
	return any
}

// keysInFrame returns how many keys of a pull are in the frame that begins with key first, for a
// server.
func (w *Worker) keysInFrame(o *operation, server, first int) int {
	return min(o.serverEnd(server)-first, w.pullCap())
}

func (w *Worker) pullCap() int { return wire.PullCap(w.link.Limits().MaxPayload, w.cfg.Dim) }

// allocFrame allocates a buffer for the next frame of a flow. There is none if the flow's window
// or the batch of frames to send is full, or the link has no buffer.
func (w *Worker) allocFrame(f *flow) (link.Buf, bool) {
	if len(w.out) == cap(w.out) || f.window.Full() {
		return 0, false
	}
	return w.link.Alloc()
}

// enqueueFrame gives a frame its sequence number and queues it for transmit. Its place is that of a
// buffer from allocFrame.
func (w *Worker) enqueueFrame(f *flow, h wire.Header, payload []byte, o *operation, at framePlace) {
	h.Job, h.Sender, h.Epoch, h.Seq = f.job, w.cfg.Sender, f.epoch, f.window.NextSeq()
	h.Put(payload)
	if h.Seq%askEvery == 0 || w.draw.Draws(h.Seq) {
		wire.Ask(payload)
	}
	e := retransmit.Entry{
		Cookie: uint64(at), Len: uint32(len(payload)), Owner: o.id,
		NeedsOwnAnswer: h.Flags&wire.FlagQuiet == 0,
	}
	if _, ok := f.window.Add(w.now, e); !ok {
		panic("transport: frame queued on a full window")
	}
	w.out = append(w.out, link.Frame{Buf: at.frameBuffer(), Len: len(payload), To: f.path})
	w.outFlow = append(w.outFlow, f.index)
	o.outstanding++
}

// transmit passes frames to the link, new ones before retransmissions.
func (w *Worker) transmit() (any bool, err error) {
	if len(w.out) > 0 {
		w.askForAnswers()
		w.now = w.clock() // packing is not part of a round trip
		n, err := w.link.Send(w.out)
		if err != nil {
			return false, err
		}
		for _, f := range w.outFlow[:n] {
			w.flows[f].window.Sent(w.now, 1)
		}
		w.out = append(w.out[:0], w.out[n:]...)
		w.outFlow = append(w.outFlow[:0], w.outFlow[n:]...)
		any = n > 0
	}
	if len(w.retx) > 0 {
		// Retransmissions that the link does not accept now are sent at their next timeout.
		n, err := w.link.Send(w.retx)
		w.retx = w.retx[:0]
		return any || n > 0, err
	}
	return any, nil
}

// askEvery is the interval, in frames of a flow, of those that ask for an answer while
// more follow. An ACK covers the 32 frames before its own, so every other ACK may be lost.
const askEvery = 16

// askForAnswers makes the newest quiet frame of each flow in the batch ask for an answer,
// which covers the others.
func (w *Worker) askForAnswers() {
	var asked uint64 // a bit for each flow
	all := uint64(1)<<len(w.flows) - 1
	for i := len(w.out) - 1; i >= 0 && asked != all; i-- {
		if f := uint64(1) << w.outFlow[i]; asked&f == 0 && wire.Ask(w.link.Payload(w.out[i].Buf)) {
			asked |= f
		}
	}
}
