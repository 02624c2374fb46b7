// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/libra-ina/libra/wire"
)

const (
	// MaxParts is the largest number of parts of a hot set.
	MaxParts = 64
	// MaxShares is the largest number of shares of a job: a worker has a flow to each, beside those to
	// [wire.MaxServers] servers, and a bit for each flow.
	MaxShares = 31
)

// PartRows returns the number of row ranks in each part of a hot set of some rows, which is divided into
// at most a number of parts. The last part may have fewer.
func PartRows(rows, parts int) int { return max(1, (rows+parts-1)/parts) }

// Shares divides a hot set among several jobs of aggregators. Each of its shares is a list of parts, in
// ascending order, and its ranks count the scalars of these parts: local ranks, the only ones in frames and
// harvests of the share's job. It is immutable and safe for concurrent use.
//
// To the [Packer], the shares lie behind one another in pages: each begins with a page of its own, so that
// no stripe has pairs of two.
type Shares struct {
	hotSet *HotSet
	rows   uint32     // of a part
	parts  [][]uint32 // of each share
	slots  []int      // of each share
	pages  []uint32   // the first page of each share, and the number of all pages

	// to has for each part what turns the rank of one of its scalars into that in the pages, by addition
	// modulo 2^32.
	to [MaxParts]uint32
}

// NewShares divides a hot set into [MaxParts] parts, or fewer if it has fewer rows, and deals these in turn
// among a number of shares. The error is [ErrConfig].
func NewShares(hot *HotSet, count int) (*Shares, error) {
	rows := PartRows(hot.Len(), MaxParts)
	s := &Shares{hotSet: hot, rows: uint32(rows), parts: make([][]uint32, max(0, count)), pages: []uint32{0}}
	parts := (hot.Len() + rows - 1) / rows
	switch {
	case count < 1 || count > MaxShares:
		return nil, fmt.Errorf("%w: %d shares, possible are 1 to %d", ErrConfig, count, MaxShares)
	case count > parts:
		return nil, fmt.Errorf("%w: %d shares of a hot set of %d rows: each needs a row at least", ErrConfig, count, hot.Len())
	}
	for part := range uint32(parts) {
		owner := int(part) % count
		s.parts[owner] = append(s.parts[owner], part)
	}
	dim := hot.Dim()
	for _, parts := range s.parts {
		base := s.pages[len(s.pages)-1]
		slots := 0
		for _, part := range parts {
			first := int(part) * rows
			s.to[part] = base*PageSlots + uint32(slots) - uint32(first*dim)
			slots += (min(first+rows, hot.Len()) - first) * dim
		}
		s.slots = append(s.slots, slots)
		s.pages = append(s.pages, base+uint32(slots+PageSlots-1)/PageSlots)
	}
	if n := s.allPages(); n > wire.MaxPages {
		return nil, fmt.Errorf("%w: %d shares of %d slots take %d pages, frames name %d: use fewer shares or hot rows",
			ErrConfig, count, hot.Slots(), n, wire.MaxPages)
	}
	return s, nil
}

// Len returns the number of shares.
func (s *Shares) Len() int { return len(s.parts) }

// Slots returns the number of scalars of a share.
func (s *Shares) Slots(share int) int { return s.slots[share] }

// Rank returns the scalar rank in the hot set of a local rank of a share, or false if the share has no such
// rank.
func (s *Shares) Rank(share int, local uint32) (rank uint32, ok bool) {
	if int64(local) >= int64(s.slots[share]) {
		return Cold, false
	}
	size := s.rows * uint32(s.hotSet.dim) // only the last part of the hot set may be shorter
	return s.parts[share][local/size]*size + local%size, true
}

// Fingerprint identifies the mapping from keys to the local ranks of a share: the SHA-256 of the hot set's
// fingerprint, the rows of a part, and the share's parts. Parties may exchange local ranks only if their
// fingerprints are equal.
func (s *Shares) Fingerprint(share int) Fingerprint {
	hot := s.hotSet.Fingerprint()
	b := binary.BigEndian.AppendUint32(hot[:], s.rows)
	for _, part := range s.parts[share] {
		b = binary.BigEndian.AppendUint32(b, part)
	}
	return sha256.Sum256(b)
}

// allPages returns the number of pages of all shares.
func (s *Shares) allPages() int { return int(s.pages[len(s.parts)]) }

// of returns the share to which a page belongs.
func (s *Shares) of(page uint32) int {
	share := 0
	for s.pages[share+1] <= page {
		share++
	}
	return share
}

// pageSlots returns the number of slots that are used of a page.
func (s *Shares) pageSlots(page int) int {
	share := s.of(uint32(page))
	return min(s.slots[share]-(page-int(s.pages[share]))*PageSlots, PageSlots)
}

// place turns the rank of a row's first scalar into that in the pages.
func (s *Shares) place(row, rank uint32) uint32 { return rank + s.to[row/s.rows] }

// placeAll is place for the found rows of keys, whose ranks count from 1, of rows of one scalar.
func (s *Shares) placeAll(found []uint32) {
	for i, f := range found {
		if f != 0 {
			found[i] = f + s.to[(f-1)/s.rows]
		}
	}
}

// orderByShare lists the stripes by share, each share's in their order, and sets the end of each share's.
func (s *Shares) orderByShare(list *slotList) {
	var next [MaxShares + 1]int // counts, then the place of each share's next stripe
	for _, mask := range list.masks {
		next[s.of(mask>>wire.Lanes)+1]++
	}
	for share := range s.parts {
		next[share+1] += next[share]
	}
	list.shareEnds = append(list.shareEnds[:0], next[1:len(s.parts)+1]...)
	list.order = grown(list.order, len(list.masks))[:len(list.masks)]
	for k, mask := range list.masks {
		to := &next[s.of(mask>>wire.Lanes)]
		list.order[*to] = uint32(k)
		*to++
	}
}
