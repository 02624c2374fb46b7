// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"maps"
	"slices"

	"github.com/libra-ina/libra/wire"
)

// Mark names the frames of an admitted sender that are in a [Bank], or in one that an earlier Swap
// of the job returned. It is what the sender's duplicate filter held at the swap, as far as the
// sender can have a use for it: a number that is W or more below the newest was answered, so that
// the frame is in a bank, or its sender knows that it was refused.
type Mark struct {
	Sender uint16
	Epoch  uint16 // of the admission

	// Newest is the newest number that was applied, or that the filter holds as refused. It is 0
	// if there is none. It does not suffice to remember the newest one that was applied: refused
	// frames after it overwrite its entry.
	Newest uint32

	// Applied tells which of the W numbers up to Newest were applied: bit i%64 of word i/64 is
	// that of number Newest-i. At admission, number 0 counts as applied, as in the filter.
	Applied [wire.DefaultWindow / 64]uint64
}

// NewMark returns the mark of a sender with the entries of its duplicate filter: entry i is the
// number at place i, and whether the frame was applied.
func NewMark(s SenderConfig, entry func(i int) (seq uint32, applied bool)) Mark {
	m := Mark{Sender: s.ID, Epoch: s.Epoch}
	for i := range 2 * wire.DefaultWindow {
		if seq, _ := entry(i); i == 0 || int32(seq-m.Newest) > 0 {
			m.Newest = seq
		}
	}
	for i := range uint32(wire.DefaultWindow) {
		seq := m.Newest - i
		if held, applied := entry(int(seq % (2 * wire.DefaultWindow))); held == seq && applied {
			m.Applied[i/64] |= 1 << (i % 64)
		}
	}
	return m
}

// Has reports whether the frame with a number is in the banks. It may also report that of a number
// that the sender knows to be refused.
func (m *Mark) Has(seq uint32) bool {
	behind := m.Newest - seq
	switch {
	case int32(behind) < 0:
		return false
	case behind >= wire.DefaultWindow:
		return true
	}
	return m.Applied[behind/64]>>(behind%64)&1 != 0
}

// SortedMarks returns marks by sender in the order of [Bank].
func SortedMarks(bySender map[uint16]Mark) []Mark {
	marks := slices.AppendSeq(make([]Mark, 0, len(bySender)), maps.Values(bySender))
	slices.SortFunc(marks, func(a, b Mark) int { return int(a.Sender) - int(b.Sender) })
	return marks
}
