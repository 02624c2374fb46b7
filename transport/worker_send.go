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

// room allocates a buffer for the next frame of a flow. There is none if the flow's window
// or the batch of frames to send is full, or the link has no buffer.
func (w *Worker) room(f *flow) (link.Buf, bool) {
	if len(w.out) == cap(w.out) || f.window.Full() {
		return 0, false
	}
	return w.link.Alloc()
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

// enqueue gives a frame its sequence number and queues it for transmit. Its
// buffer, in the cookie, comes from room.
func (w *Worker) enqueue(f *flow, h wire.Header, payload []byte, o *operation, cookie uint64) {
	h.Job, h.Sender, h.Epoch, h.Seq = w.cfg.Job, w.cfg.Sender, f.epoch, f.window.NextSeq()
	h.Put(payload)
	if h.Seq%askEvery == 0 {
		wire.Ask(payload)
	}
	e := retransmit.Entry{Cookie: cookie, Len: uint32(len(payload)), Owner: o.id, Own: h.Flags&wire.FlagQuiet == 0}
	if _, ok := f.window.Add(w.now, e); !ok {
		panic("transport: frame queued on a full window")
	}
	w.out = append(w.out, link.Frame{Buf: cookieBuf(cookie), Len: len(payload), To: f.path})
	w.outFlow = append(w.outFlow, f.index)
	o.outstanding++
}

// pack fills frames from pushes while there is room, and reports whether it did
// anything.
func (w *Worker) pack() (any bool) {
	for len(w.pushes) > 0 {
		if !w.pushes[0].begun {
			any = true
			w.group()
			if !w.begin(w.pushes[0]) {
				continue
			}
		}
		o := w.pushes[0]
		for w.packer.Next() != 0 {
			if !w.fill(o) {
				return any
			}
			any = true
		}
		w.seal(o)
	}
	return any
}

// begin passes a push to the packer, or ends it if it is refused as a whole.
func (w *Worker) begin(o *operation) bool {
	var err error
	switch {
	case o.added:
		err = w.beginSum(o)
	case o.prepared != nil:
		err = w.packer.BeginPrepared(o.values, o.prepared)
	case o.members != nil && o.members[0].prepared != nil:
		err = w.packer.BeginPrepared(o.values, w.groupPrepared...)
	default:
		err = w.packer.Begin(o.keys, o.values)
	}
	if err == nil && w.cfg.Mode == aggregator.Sync && w.packer.Next() == wire.TypeHot {
		err = fmt.Errorf("%w: a push of hot rows, which Reduce takes", ErrMode)
	}
	if err != nil && o.members != nil {
		w.dissolve(o) // the error may concern one member only
		return false
	}
	if o.released == nil {
		w.register(o) // from the queue, a group, or sent again
	}
	o.noteNumbers()
	o.begun = true
	if err == nil {
		return true
	}
	w.pushes = slices.Delete(w.pushes, 0, 1)
	o.sealed = true
	o.fail(err)
	if o.queued && o.owner == nil && w.refusal == nil {
		w.refusal = err // its ticket may be dropped
	}
	o.refuse()
	w.settle(o)
	return false
}

// fill queues the next frame of a push, and returns false if there is no room.
func (w *Worker) fill(o *operation) bool {
	f, h := w.flows[flowHot], wire.Header{Type: w.packer.Next(), Flags: wire.FlagQuiet}
	if h.Type != wire.TypeHot {
		f = w.flows[flowCold+w.packer.Server()]
	} else {
		if w.cfg.Layout == packer.Dense {
			h.Flags |= wire.FlagDense
		}
		if o.sums != nil {
			h.Flags = h.Flags&^wire.FlagQuiet | wire.FlagWantSum
		}
	}
	b, ok := w.room(f)
	if !ok {
		return false
	}
	payload, err := w.packer.Fill(w.link.Payload(b))
	if err != nil {
		panic(err) // makeWorker has checked that frames fit the link's payloads
	}
	sent := w.packer.Sent()
	w.stats.PairsHot += uint64(sent.HotPairs - o.sent.HotPairs)
	cold := uint64(sent.ColdRows - o.sent.ColdRows)
	w.stats.RowsCold += cold
	if h.Type == wire.TypeColdAt {
		w.stats.RowsAt += cold
	}
	o.sent = sent
	w.enqueue(f, h, payload, o, cookie(b, 0))
	return true
}

// seal ends the packing of a push.
func (w *Worker) seal(o *operation) {
	w.pushes = slices.Delete(w.pushes, 0, 1)
	o.sealed, o.complete = true, true
	for _, m := range o.members {
		m.sealed = true
	}
	if o.sums == nil {
		o.release()
	}
	w.settle(o)
}

// ask fills frames with keys of pulls while there is room, and reports whether it did.
func (w *Worker) ask() (any bool) {
	for len(w.pulls) > 0 {
		o := w.pulls[0]
		if o.asked < len(o.keys) {
			server := o.serverOf(o.asked)
			f := w.flows[flowCold+server]
			b, ok := w.room(f)
			if !ok {
				return any
			}
			n := w.pulled(o, server, o.asked)
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
				rows.SetKey(i, o.keys[o.position(o.asked+i)])
			}
			w.enqueue(f, wire.Header{Type: kind}, payload, o, cookie(b, o.asked))
			o.asked += n
			any = true
		}
		if o.asked == len(o.keys) {
			o.complete, o.sealed = true, true
			w.pulls = slices.Delete(w.pulls, 0, 1)
			w.settle(o)
		}
	}
	return any
}

// pulled returns how many keys of a pull are in the frame that begins with key first, for a server.
func (w *Worker) pulled(o *operation, server, first int) int {
	return min(o.end(server)-first, w.pullCap())
}

func (w *Worker) pullCap() int { return wire.PullCap(w.link.Limits().MaxPayload, w.cfg.Dim) }
