// SPDX-License-Identifier: Apache-2.0

package share

import "slices"

// Run is a run of local ranks that another share has, too: the number of its slots, and the other's
// rank of the first.
type Run struct{ Slots, First uint32 }

// Within returns the local ranks of a share, in order, as runs of those of a share of another
// division; or false if that does not have all of its parts, or is of another hot set or of other
// parts.
func (d *Division) Within(share int, other *Division, at int) (runs []Run, ok bool) {
	if d.hotSet != other.hotSet || d.partRows != other.partRows || d.partSlots != other.partSlots {
		return nil, false
	}
	left := uint32(d.slots[share])
	for _, part := range d.parts[share] {
		i := slices.Index(other.parts[at], part)
		if i < 0 {
			return nil, false
		}
		first, slots := uint32(i)*other.partSlots, min(left, d.partSlots)
		left -= slots
		if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Slots == first {
			runs[n-1].Slots += slots
			continue
		}
		runs = append(runs, Run{slots, first})
	}
	return runs, true
}
