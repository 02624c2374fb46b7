// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// Prepared batches send cold rows by key until one of their pushes is acknowledged: then
// all rows exist. The worker asks for their numbers, and sends the rows by number from
// then on.

// finding is the part of an operation that requests row numbers.
type finding struct {
	of    *packer.ColdRows
	rows  packer.RowNumbers
	known uint64 // a bit for each server whose numbering is known
}

// followUp starts what depends on the end of an operation.
func (w *Worker) followUp(o *operation) {
	switch {
	case o.find != nil:
		w.foundNumbers(o)
	case w.settling != nil && o == w.settling.of:
		w.settledAll(o)
	case o.parent != nil:
		w.sentAgain(o)
	case !o.pull && o.failure == nil:
		w.findNumbers(o.prepared)
		for _, m := range o.members {
			w.findNumbers(m.prepared)
		}
	}
}

// findNumbers requests the row numbers of a prepared batch that has none.
func (w *Worker) findNumbers(b *packer.Prepared) {
	if b == nil || w.keysOnly {
		return
	}
	rows := b.ColdRows()
	if len(rows.Keys) == 0 || rows.Numbers() != nil || w.finding[rows] {
		return
	}
	w.finding[rows] = true
	w.acceptOperation(numbersSearch(rows))
}

// numbersSearch returns the operation that requests the numbers of a batch's cold rows.
func numbersSearch(of *packer.ColdRows) *operation {
	return &operation{pull: true, keys: of.Keys, ends: of.Ends, find: &finding{of: of, rows: packer.RowNumbers{
		Numberings: make([]uint32, max(1, len(of.Ends))), Numbers: make([]uint32, len(of.Keys)),
	}}}
}

func (w *Worker) receiveFound(f *flow, h wire.Header, payload []byte) verdict {
	rows, err := wire.ParseRows(payload, wire.TypeFound)
	if err != nil {
		return malformed
	}
	e, ok := f.window.Ack(w.now, h.Seq)
	if !ok {
		return taken
	}
	o, first := w.ops[e.Owner], framePlace(e.Cookie).firstKey()
	if o.find == nil {
		o.recordFailure(w.peerError(f, fmt.Errorf("%w: row numbers that were not asked for", ErrAnswer)))
	} else if err := o.find.takeNumbers(rows, f.serverIndex(), first,
		w.keysInFrame(o, f.serverIndex(), first)); err != nil {
		o.recordFailure(w.peerError(f, err))
	}
	w.frameAcknowledged(o, e)
	return taken
}

// takeNumbers stores a server's row numbers of n keys, from position first on.
func (s *finding) takeNumbers(rows wire.Rows, server, first, n int) error {
	into := &s.rows
	if rows.Count != n {
		return fmt.Errorf("%w: %d row numbers for %d keys", ErrAnswer, rows.Count, n)
	}
	if s.known>>server&1 == 0 {
		s.known |= 1 << server
		into.Numberings[server] = rows.Numbering
	}
	if rows.Numbering != into.Numberings[server] {
		return errNoNumbers // the server has renumbered its rows meanwhile
	}
	for i := range rows.Count {
		if into.Numbers[first+i] = rows.Number(i); into.Numbers[first+i] == 0 {
			return errNoNumbers
		}
	}
	return nil
}

// errNoNumbers means that some rows have no numbers, or not of one numbering. The next push
// by key assigns them.
var errNoNumbers = fmt.Errorf("%w: rows without numbers", ErrAnswer)

// foundNumbers ends the search for row numbers. A server that refuses it, or answers with something
// else, is not asked again. A caller that gives up is no such answer.
func (w *Worker) foundNumbers(o *operation) {
	delete(w.finding, o.find.of)
	switch {
	case o.failure == nil:
		o.find.of.SetNumbers(&o.find.rows)
	case !errors.Is(o.failure, errNoNumbers) && !o.cancelled.Load():
		w.keysOnly = true
	}
}

// noteNumbers keeps the cold rows and their numbers that are current when a push begins.
func (o *operation) noteNumbers() {
	if o.prepared != nil {
		o.rows = o.prepared.ColdRows()
		o.numbers = o.rows.Numbers()
	}
	for _, m := range o.members {
		m.noteNumbers()
	}
}

// keysByNumber maps the row numbers of a push's cold rows at a server to their keys.
func (o *operation) keysByNumber(server int) map[uint32]uint64 {
	keys := map[uint32]uint64{}
	note := func(o *operation) {
		if o.numbers == nil {
			return
		}
		all := o.rows.Keys
		first, end := 0, len(all)
		if ends := o.rows.Ends; ends != nil {
			if end = ends[server]; server > 0 {
				first = ends[server-1]
			}
		}
		for i := first; i < end; i++ {
			keys[o.numbers.Numbers[i]] = all[i]
		}
	}
	note(o)
	for _, m := range o.members {
		note(m)
	}
	return keys
}

// sendAgain pushes the rows of a COLD_AT frame by key, because the server has refused its
// numbering. The refusal holds for every copy of the frame, so none was applied and none
// will be. It returns false for other frames.
func (w *Worker) sendAgain(o *operation, server int, payload []byte) bool {
	h, _ := wire.ParseHeader(payload) // our own frame
	if h.Type != wire.TypeColdAt {
		return false
	}
	rows, err := w.decoder.parseRows(payload, h)
	if err != nil {
		return false
	}
	known := o.keysByNumber(server)
	again := &operation{keys: make([]uint64, rows.Count), values: make([]float32, rows.Count*rows.Dim), parent: o}
	for i := range again.keys {
		again.keys[i] = known[rows.Number(i)]
		rows.Row(i, again.values[i*rows.Dim:])
	}
	o.forgetNumbers()
	w.again++
	w.stats.Renamed += uint64(rows.Count)
	w.pushes = append(w.pushes, again)
	return true
}

// sendCold pushes the pairs of a HOT frame as rows to the server, because a sum at the aggregator
// would be out of range. That refusal, too, holds for every copy of the frame.
func (w *Worker) sendCold(f *flow, o *operation, payload []byte) {
	d := w.cfg.Dim
	again := &operation{parent: o, cold: true}
	place := map[int]int{} // of a row rank in again
	stripes, _ := wire.StripeCount(payload)
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		for mask := s.Mask(); mask != 0; mask &= mask - 1 {
			lane := bits.TrailingZeros32(mask)
			rank := int(w.rankAt(f, s, lane))
			at, ok := place[rank/d]
			if !ok || again.values[at*d+rank%d] != 0 { // a rank may come again
				at = len(again.keys)
				place[rank/d] = at
				again.keys = append(again.keys, w.cfg.HotSet.Key(uint32(rank/d)))
				again.values = append(again.values, make([]float32, d)...)
			}
			again.values[at*d+rank%d] = s.Value(lane)
		}
	}
	w.again++
	w.pushes = append(w.pushes, again)
}

// forgetNumbers makes the batches of a push use keys again.
func (o *operation) forgetNumbers() {
	if o.numbers != nil {
		o.rows.ForgetNumbers(o.numbers)
	}
	for _, m := range o.members {
		m.forgetNumbers()
	}
}

// sentAgain records the result of a frame that was sent again as that of the original frame.
func (w *Worker) sentAgain(o *operation) {
	w.again--
	p := o.parent
	p.outstanding--
	switch {
	case o.failure == nil:
		p.acked++
	case o.acked+o.unknown == 0:
		p.refused++
	default:
		p.unknown++ // a part of it may be applied
	}
	if o.failure != nil {
		p.recordFailure(o.failure)
	}
	w.settleOperation(p)
}
