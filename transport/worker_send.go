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

// accept takes an operation in.
func (w *Worker) accept(o *operation) {
	o.open = true
	w.register(o)
	if o.pull {
		w.pulls = append(w.pulls, o)
	} else {
		w.pushes = append(w.pushes, o)
	}
}

// register gives an operation its place in the table.
func (w *Worker) register(o *operation) {
	o.id = uint32(len(w.ops))
	for i, other := range w.ops {
		if other == nil {
			o.id = uint32(i)
			break
		}
	}
	if int(o.id) == len(w.ops) {
		w.ops = append(w.ops, nil)
	}
	w.ops[o.id] = o
}

// sweep lets go of the operations whose callers have given up.
func (w *Worker) sweep() {
	for _, o := range w.ops {
		if o == nil || !o.cancelled.Load() || !o.open {
			continue
		}
		o.fail(o.cause)
		if o == w.lender.op {
			continue // in the middle of being packed; the lender stops it
		}
		w.abandon(o)
		w.settle(o)
	}
}

// abandon puts nothing more of an operation that has failed into frames, and
// lets its caller go.
func (w *Worker) abandon(o *operation) {
	if !o.sealed {
		o.sealed = true
		is := func(other *operation) bool { return other == o }
		w.pushes = slices.DeleteFunc(w.pushes, is)
		w.pulls = slices.DeleteFunc(w.pulls, is)
	}
	o.release()
}

// settle ends an operation whose frames are all answered.
func (w *Worker) settle(o *operation) {
	if !o.sealed || o.outstanding > 0 {
		return
	}
	if o.sums != nil && o.open && o.failure == nil {
		w.copySums(o)
	}
	w.ops[o.id] = nil
	w.settled = true
	o.finish()
}

// push puts a batch into frames. While the window is full it takes turns.
func (w *Worker) push(o *operation) {
	if o.released == nil {
		w.register(o) // came through the queue, or is a group
	}
	w.lender.op = o
	var err error
	o.sent, err = w.packer.Pack(&w.lender, o.keys, o.values)
	w.lender.op = nil
	if err != nil && w.dissolve(o, err) {
		return
	}
	w.stats.PairsHot += uint64(o.sent.HotPairs)
	w.stats.RowsCold += uint64(o.sent.ColdRows)
	o.sealed, o.complete = true, err == nil
	for _, m := range o.members {
		m.sealed = true
	}
	if w.fatal != nil {
		return // finish tells the caller
	}
	if err != nil {
		o.fail(err)
	}
	if err != nil && o.sent == (packer.Sent{}) {
		// Refused as a whole: the plain reason, and no ticket.
		if o.queued && w.refusal == nil {
			w.refusal = err // its ticket may have been thrown away
		}
		o.refuse()
		w.settle(o)
		return
	}
	if o.sums == nil || err != nil {
		o.release()
	}
	w.settle(o)
}

// lender is the worker's side of the packer: it lends transmit buffers, and
// takes turns while there is none or the window is full.
type lender struct {
	w   *Worker
	op  *operation
	buf link.Buf // lent
}

var _ packer.Frames = (*lender)(nil)

func (l *lender) Hot() ([]byte, error) {
	if l.w.cfg.Mode == aggregator.Sync {
		return nil, fmt.Errorf("%w: a push of hot rows, which Reduce takes", ErrMode)
	}
	return l.lend(l.w.flows[flowHot])
}

func (l *lender) Cold() ([]byte, error) { return l.lend(l.w.flows[flowCold]) }

func (l *lender) lend(f *flow) ([]byte, error) {
	w := l.w
	for {
		if len(w.out) < cap(w.out) && !f.window.Full() {
			if b, ok := w.link.Alloc(); ok {
				l.buf = b
				return w.link.Payload(b), nil
			}
		}
		if err := w.turn(true); err != nil {
			return nil, err
		}
		if l.op.failure != nil && l.op.cancelled.Load() {
			return nil, l.op.cause
		}
	}
}

func (l *lender) SendHot(payload []byte) error {
	h := wire.Header{Type: wire.TypeHot}
	if l.w.cfg.Layout == packer.Dense {
		h.Flags |= wire.FlagDense
	}
	if l.op.sums != nil {
		h.Flags |= wire.FlagWantSum
	}
	l.w.queue(l.w.flows[flowHot], h, payload, l.op, cookie(l.buf, 0))
	return nil
}

func (l *lender) SendCold(payload []byte) error {
	l.w.queue(l.w.flows[flowCold], wire.Header{Type: wire.TypeCold}, payload, l.op, cookie(l.buf, 0))
	return nil
}

// queue gives a frame its number and puts it where transmit finds it. The
// caller has made sure that the window has room.
func (w *Worker) queue(f *flow, h wire.Header, payload []byte, o *operation, cookie uint64) {
	h.Job, h.Sender, h.Epoch, h.Seq = w.cfg.Job, w.cfg.Sender, f.epoch, f.window.NextSeq()
	h.Put(payload)
	if _, ok := f.window.Add(w.now, retransmit.Entry{Cookie: cookie, Len: uint32(len(payload)), Ticket: o.id}); !ok {
		panic("transport: frame queued on a full window")
	}
	w.out = append(w.out, link.Frame{Buf: cookieBuf(cookie), Len: len(payload), To: f.path})
	w.outFlow = append(w.outFlow, f.index)
	o.outstanding++
}

// ask puts keys of pulls into frames while there is room, and reports whether
// it did.
func (w *Worker) ask() (any bool) {
	f := w.flows[flowCold]
	for len(w.pulls) > 0 && len(w.out) < cap(w.out) && !f.window.Full() {
		o := w.pulls[0]
		if rest := o.keys[o.asked:]; len(rest) > 0 {
			b, ok := w.link.Alloc()
			if !ok {
				return any
			}
			n := min(len(rest), w.pullCap())
			payload := w.link.Payload(b)[:wire.PullLen(n)]
			rows := wire.PutRows(payload, wire.TypePull, n, w.cfg.Dim)
			for i, key := range rest[:n] {
				rows.SetKey(i, key)
			}
			w.queue(f, wire.Header{Type: wire.TypePull}, payload, o, cookie(b, o.asked))
			w.stats.KeysPulled += uint64(n)
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

func (w *Worker) pullCap() int { return wire.PullCap(w.link.MaxPayload(), w.cfg.Dim) }
