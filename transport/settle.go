// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// How a worker outlives its aggregator. While the aggregator works, the worker keeps each hot frame
// that it acknowledges in a log (frame_log.go), until a mark says that the server has its
// gradients. When the server has ended the aggregator's part in the job, the worker sends all other
// hot frames, logged or not answered, to server 0 as rows, and later ones too.

var (
	// errMark means that a mark names frames that the worker has not sent: the server or the
	// aggregator is broken.
	errMark = errors.New("transport: a mark of frames that were not sent")
	// errSumsLost is the failure of a PushSum whose gradients are added, but not at the aggregator.
	errSumsLost = errors.New("transport: the aggregator was lost: the push is applied, but its sums are not known")
	// errNoAggregator is the failure of a PushSum without an aggregator.
	errNoAggregator = errors.New("transport: sums need an aggregator, and the job goes on without one")
)

// settlement is the work after the loss of the aggregator: the log's frames that are not in the
// mark are sent to the server.
type settlement struct {
	mark   aggregator.Mark
	of     *operation // of all its frames; it fails if one is refused
	again  *operation // of the frame in rows, or nil
	rows   looseRows  // of the frame that is being sent
	sent   bool       // all is in frames
	frames uint64
}

// looseRows are rows of a hot frame on their way to the server.
type looseRows struct {
	keys   []uint64
	values []float32
	next   int // rows before it are in frames
}

func (r *looseRows) rowsLeft() int { return len(r.keys) - r.next }

// Committed tells the worker which of its hot frames the server has: it drops them from its log. A
// mark of another admission changes nothing; one of frames that were not sent ends the worker.
func (w *Worker) Committed(ctx context.Context, mark aggregator.Mark) error {
	return w.loop.Post(ctx, func() {
		f := w.flows[flowHot]
		if f == nil || w.log == nil || mark.Epoch != f.epoch || mark.Sender != w.cfg.Sender {
			return
		}
		if w.fatal = cmp.Or(w.fatal, w.checkMark(f, &mark)); w.fatal == nil {
			w.log.dropCommitted(&mark)
			w.mark, w.logWaits = mark, false
			w.endCommits()
		}
	})
}

func (w *Worker) checkMark(f *flow, mark *aggregator.Mark) error {
	if last := f.window.NextUnsent() - 1; int32(mark.Newest-last) > 0 {
		return w.peerError(w.flows[flowCold], fmt.Errorf("%w: up to %d, and the last one is %d", errMark, mark.Newest, last))
	}
	return nil
}

// AwaitCommits waits until the server has the gradients of all hot frames that are answered.
func (w *Worker) AwaitCommits(ctx context.Context) error {
	over := make(chan struct{})
	if err := w.loop.Post(ctx, func() {
		w.commits = append(w.commits, over)
		w.endCommits()
	}); err != nil {
		return err
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.Done():
		return w.Err()
	}
}

// endCommits ends the waits for an empty log.
func (w *Worker) endCommits() {
	if w.log != nil && w.log.used > 0 || w.settling != nil {
		return
	}
	for _, over := range w.commits {
		close(over)
	}
	w.commits = nil
}

// Settle makes the worker go on without its aggregator: it sends all hot frames that a mark lacks
// to server 0, as rows, and later ones, too. It returns when all of these are acknowledged. ask
// gets the sequence number of the worker's next frame for server 0: an end of a step with an
// earlier one is from before the loss of the aggregator. It returns the last mark of the worker's
// admission at the aggregator, of which the server will add no more. Until it has settled, the
// worker reports no end of a step. A frame that the server refuses ends the worker: its push was
// acknowledged.
func (w *Worker) Settle(ctx context.Context, ask func(context.Context, uint32) (aggregator.Mark, error)) error {
	var next uint32
	err := w.Do(ctx, func() {
		w.stepsHeld = true
		next = w.flows[flowCold].window.NextSeq()
	})
	if err != nil {
		return err
	}
	mark, err := ask(ctx, next)
	if err == nil {
		err = w.Do(ctx, func() { w.beginSettling(mark) })
	}
	if err != nil {
		return err
	}
	return w.AwaitCommits(ctx)
}

// Enter makes a worker without an aggregator send hot frames to one that has admitted it to the
// job, which must take frames as the worker makes them. ctx bounds the resolution of its Ethernet
// address.
func (w *Worker) Enter(ctx context.Context, aggregator Peer) error {
	if w.cfg.HotSet == nil || w.cfg.Replay == 0 {
		return fmt.Errorf("%w: Enter without a hot set or a log: the worker could not settle", ErrConfig)
	}
	f, err := w.newHotFlow(ctx, 0, w.cfg.Job, aggregator, nil)
	if err != nil {
		return err
	}
	var taken error
	err = w.Do(ctx, func() {
		if !w.isDirect() || w.settling != nil {
			taken = fmt.Errorf("%w: Enter, and the worker has an aggregator: Settle comes before", ErrMode)
			return
		}
		for _, other := range w.serverFlows() {
			if other.isAt(f) {
				taken = fmt.Errorf("%w: %s and aggregator have the same address %v", ErrConfig, other.role, f.to)
				return
			}
		}
		w.placeFlow(f, flowHot) // all that flushes wait for is on its way to servers
		if w.sums == nil {
			w.sums = make([]float32, w.cfg.HotSet.Slots())
		}
		w.beginLog()
	})
	return cmp.Or(err, taken)
}

// beginLog begins a log for the frames of a new flow to an aggregator.
func (w *Worker) beginLog() {
	if w.cfg.Replay > 0 {
		w.log = newFrameLog(w.cfg.Replay)
		w.mark, w.logWaits = aggregator.Mark{Newest: wire.FirstSeq - 1}, false
	}
}

// beginSettling gives up the flow to the aggregator.
func (w *Worker) beginSettling(mark aggregator.Mark) {
	f := w.flows[flowHot]
	if f == nil || w.log == nil { // it has sent nothing to that aggregator
		w.stepsHeld = false
		return
	}
	if w.fatal = cmp.Or(w.fatal, w.checkMark(f, &mark)); w.fatal != nil {
		return
	}
	w.countEnded(f)
	w.flows[flowHot] = nil
	w.forgetUnsent(f)
	w.settling = &settlement{mark: mark, of: &operation{}}
	w.registerOperation(w.settling.of)
	for seq, e := range f.window.Unacked() {
		o, payload := w.ops[e.Owner], w.link.Payload(framePlace(e.Cookie).frameBuffer())[:e.Len]
		if o.sums != nil {
			o.recordFailure(w.peerError(f, errSumsLost))
		}
		if mark.Has(seq) {
			w.frameAcknowledged(o, e)
			continue
		}
		w.log.addFrame(o.id, payload)
		w.link.Free(framePlace(e.Cookie).frameBuffer()) // the frame stays outstanding in its push
	}
}

// forgetUnsent removes the frames of a flow from those that wait for the link.
func (w *Worker) forgetUnsent(f *flow) {
	out, flows := w.out[:0], w.outFlow[:0]
	for i, frame := range w.out {
		if w.outFlow[i] != f.index {
			out, flows = append(out, frame), append(flows, w.outFlow[i])
		}
	}
	w.out, w.outFlow = out, flows
}

// sendSettled puts the frames of the log that the mark lacks into frames for the server, while
// there is room, and reports whether it did anything.
func (w *Worker) sendSettled() (any bool) {
	s := w.settling
	if s == nil || s.sent {
		return false
	}
	for {
		if s.rows.rowsLeft() > 0 {
			if !w.sendRows(&s.rows, s.again) {
				return any
			}
			any = true
			continue
		}
		if o := s.again; o != nil {
			s.again, o.sealed = nil, true
			w.settleOperation(o)
		}
		owner, payload, ok := w.log.oldestFrame()
		if !ok {
			s.sent, s.of.sealed = true, true
			w.settleOperation(s.of)
			return true
		}
		h, _ := wire.ParseHeader(payload) // our own frame
		of := s.of
		switch {
		case owner != acknowledged:
			of = w.ops[owner]
		case s.mark.Has(h.Seq):
			w.log.dropOldest()
			continue
		default:
			of.outstanding++
		}
		w.unpackHot(payload, &s.rows)
		w.log.dropOldest()
		s.frames++
		s.again = &operation{parent: of}
		w.registerOperation(s.again)
		w.again++
		any = true
	}
}

// settledAll is called when all that the settlement has sent is answered.
func (w *Worker) settledAll(o *operation) {
	w.stats.Settled += w.settling.frames
	if o.failure != nil {
		w.fatal = fmt.Errorf("gradients that the aggregator had acknowledged are lost: %w", o.failure)
		return
	}
	w.settling, w.log, w.stepsHeld = nil, nil, false
	w.endCommits()
}

// unpackHot makes rows of the pairs of a hot frame. A row may occur several times.
func (w *Worker) unpackHot(payload []byte, into *looseRows) {
	into.keys, into.values, into.next = into.keys[:0], into.values[:0], 0
	h, _ := wire.ParseHeader(payload) // our own frame
	layout, d := packer.LaneAligned, w.cfg.Dim
	if h.Flags&wire.FlagDense != 0 {
		layout = packer.Dense
	}
	last := uint32(0) // of the rows by rank
	var set uint64    // its columns that have a value, as far as they fit
	for i := range (len(payload) - wire.HeaderLen) / wire.StripeLen {
		s := wire.StripeAt(payload, i)
		for mask := s.Mask(); mask != 0; mask &= mask - 1 {
			lane := bits.TrailingZeros32(mask)
			x := w.numbers.Float32(s.Bits(lane))
			if x == 0 {
				continue // it would change nothing, except that a row is made for it
			}
			rank := layout.Rank(s, lane)
			row, column := rank/uint32(d), int(rank)%d
			if len(into.keys) == 0 || row != last || column >= 64 || set>>column&1 != 0 {
				last, set = row, 0
				into.keys = append(into.keys, w.cfg.HotSet.Key(row))
				for range d {
					into.values = append(into.values, 0)
				}
			}
			set |= 1 << min(column, 63)
			into.values[len(into.values)-d+column] = x
		}
	}
}

// sendRows puts rows into the next frame for server 0, and returns false if there is no room.
func (w *Worker) sendRows(r *looseRows, o *operation) bool {
	f, d := w.flows[flowCold], w.cfg.Dim
	b, ok := w.allocFrame(f)
	if !ok {
		return false
	}
	n := min(r.rowsLeft(), wire.ColdCap(w.link.Limits().MaxPayload, d))
	payload := w.link.Payload(b)[:wire.ColdLen(n, d)]
	rows := wire.PutRows(payload, wire.TypeCold, n, d)
	for i := range n {
		rows.SetKey(i, r.keys[r.next+i])
		rows.SetRow(i, r.values[(r.next+i)*d:])
	}
	r.next += n
	w.stats.RowsCold += uint64(n)
	w.stats.BytesCold += uint64(len(payload))
	w.enqueueFrame(f, wire.Header{Type: wire.TypeCold, Flags: wire.FlagQuiet}, payload, o, placeOf(b, 0))
	return true
}

// fillDirect queues the next frame of a push whose next frame is hot, without an aggregator, and
// returns false if there is no room.
func (w *Worker) fillDirect(o *operation) bool {
	if len(w.out) == cap(w.out) || w.flows[flowCold].window.Full() {
		return false
	}
	if w.hotFrame == nil {
		w.hotFrame = make([]byte, wire.HotLen(w.cfg.Stripes))
	}
	payload, err := w.packer.Fill(w.hotFrame)
	if err != nil {
		panic(err) // it has room for the stripes of a frame
	}
	h := wire.Header{Type: wire.TypeHot}
	if w.cfg.Layout == packer.Dense {
		h.Flags |= wire.FlagDense
	}
	h.Put(payload)
	sent := w.packer.Sent()
	w.countHot(o, sent)
	o.sent = sent
	w.unpackHot(payload, &w.hotRows)
	return w.hotRows.rowsLeft() == 0 || w.sendRows(&w.hotRows, o)
}

// isDirect reports whether hot rows go to the server.
func (w *Worker) isDirect() bool { return w.cfg.HotSet != nil && w.flows[w.hotAt[0]] == nil }

// logAcknowledged keeps an acknowledged hot frame until the server has it. The mark that says so
// may have come before the answer.
func (w *Worker) logAcknowledged(b link.Buf, n uint32) {
	if w.log == nil {
		return
	}
	payload := w.link.Payload(b)[:n]
	if h, _ := wire.ParseHeader(payload); w.mark.Has(h.Seq) { // our own frame
		w.log.releaseFrame(int(n))
		return
	}
	w.log.addFrame(acknowledged, payload)
	if w.logWaits { // a harvest would have it now
		w.askForHarvest()
	}
}

// mustWait reports whether the next hot frame has to wait for room in the log.
func (w *Worker) mustWait() bool {
	if w.log == nil || w.log.hasRoom(wire.HotLen(w.cfg.Stripes)) {
		return false
	}
	if !w.logWaits {
		w.logWaits = true
		w.stats.LogWaits++
		w.askForHarvest()
	}
	return true
}

// askForHarvest tells that a push waits for room in the log.
func (w *Worker) askForHarvest() {
	select {
	case w.cfg.LogFull <- struct{}{}:
	default:
	}
}

// heldRefusal reports whether a refusal by the aggregator leaves the frame unanswered, because it
// says only that the aggregator no longer knows the worker: the server decides what becomes of the
// frame.
func (w *Worker) heldRefusal(f *flow, code wire.Code) bool {
	return w.log != nil && f.hot &&
		(code == wire.CodeUnknownJob || code == wire.CodeUnknownSender || code == wire.CodeWrongEpoch)
}
