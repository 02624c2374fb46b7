// SPDX-License-Identifier: Apache-2.0

package retransmit

import "github.com/libra-ina/libra/wire"

// Filter detects duplicate frames of one flow, exactly: it neither accepts a
// duplicate nor refuses a new frame. Its zero value is the state at admission. The
// aggregator's data planes and the parameter server keep one for every sender.
//
// The filter is a direct-mapped table: entry seq mod 2W holds the sequence
// number that was last decided there, and why it was refused, if it was. A frame
// is fresh if its number is newer than the entry's in serial-number arithmetic
// (RFC 1982).
//
// Why that is exact: a sender's unacknowledged frames lie in [base, base+W).
// Frame s+2W is therefore sent only after s was answered. So when a fresh s
// arrives, its entry holds s-2W or an older number; when a duplicate of a
// decided s arrives, the entry holds s or a newer number.
//
// Why "newer" and not "different": a copy of s that is still in the network
// after s+2W was decided meets the entry s+2W. It is different, but s was
// decided before.
//
// Why refused numbers are entered: whether a sum is in range, or a row has room,
// changes with time. A copy of a refused frame that the network kept would be
// applied later, after its sender was told that the frame is not.
//
// Why 2W entries: the unacknowledged frames need an entry each, which takes
// W. The second W makes the previous window's entries outlive the current
// window, so that a receiver on hardware that can only compare for equality
// still detects any copy less than W numbers late; all receivers share one
// layout.
//
// Why not a Bloom filter: a false positive is a gradient that is acknowledged
// but never added. Why not only frames with the RETX flag: an original that
// the network delays until after its own retransmission carries no flag.
//
// The comparison covers half of the number space: a copy must not arrive after
// 2^31 later frames, and an entry must not be older than 2^31 frames when it is
// used. Receivers therefore also mark frames that they do not filter, such as
// PULLs, so that a flow of only these keeps the entries young.
//
// A Filter is not safe for concurrent use.
type Filter struct {
	entries [2 * wire.DefaultWindow]entry
}

// entry is the newest frame of its place, applied or refused.
type entry struct {
	seq     uint32
	refusal wire.Refusal // without a code: the frame was applied
}

// Fresh reports whether frame seq has been neither applied nor refused yet.
func (f *Filter) Fresh(seq uint32) bool { return newer(seq, f.entry(seq).seq) }

// Mark records that frame seq, which must be fresh, is applied.
func (f *Filter) Mark(seq uint32) { *f.entry(seq) = entry{seq: seq} }

// Refuse records that frame seq, which must be fresh, is refused, and with all of its copies.
func (f *Filter) Refuse(seq uint32, r wire.Refusal) { *f.entry(seq) = entry{seq, r} }

// Refusal returns why frame seq was refused, if it was, for the answer to a copy of it. It has
// forgotten that once the frame 2W numbers later is decided; but no sender waits for the answer
// then.
func (f *Filter) Refusal(seq uint32) (r wire.Refusal, refused bool) {
	e := f.entry(seq)
	if e.seq != seq {
		return wire.Refusal{}, false
	}
	return e.refusal, e.refusal.Code != 0
}

// Applied reports whether frame seq was applied, as far as the filter remembers.
func (f *Filter) Applied(seq uint32) bool {
	e := f.entry(seq)
	return e.refusal.Code == 0 && !newer(seq, e.seq)
}

// Cover returns which frames around seq are applied, in the format of an ACK with
// [wire.FlagCover]: bit i stands for frame seq+[wire.CoverAhead]-i.
func (f *Filter) Cover(seq uint32) (cover uint64) {
	for i := range uint32(wire.CoverBits) {
		if f.Applied(seq + wire.CoverAhead - i) {
			cover |= 1 << i
		}
	}
	return cover
}

// Entry returns the number that was last decided at a place of the table, 0 to 2W-1, and whether
// the frame was applied.
func (f *Filter) Entry(place int) (seq uint32, applied bool) {
	e := &f.entries[place]
	return e.seq, e.refusal.Code == 0
}

func (f *Filter) entry(seq uint32) *entry { return &f.entries[seq%uint32(len(f.entries))] }

// newer reports whether a is after b in serial-number arithmetic.
func newer(a, b uint32) bool { return int32(a-b) > 0 }
