// SPDX-License-Identifier: Apache-2.0

// Package share divides a hot set among several jobs of aggregators, so that one training can have them at
// several places. [Divide] cuts it into at most 64 parts, ranges of equally many rows, and deals them in turn.
//
// Units: ranks, slots and pages count scalars as in package packer: a row of dimension d has d of them, and a
// page has 65,536.
//
// Errors wrap [ErrConfig]; no other function returns one.
//
// A [Division] belongs to whoever made it, keeps no memory of its caller, and may be used by several goroutines.
//
// Stability: experimental.
package share

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/wire"
)

const (
	// MaxParts is the largest number of parts of a hot set.
	MaxParts = 64
	// Max is the largest number of shares of a job: a worker has a flow to each, beside those to
	// [wire.MaxServers] servers, and a bit for each flow.
	Max = 31
)

// ErrConfig is in the errors of [Divide].
var ErrConfig = errors.New("share: a hot set cannot be divided so")

// PartRows returns the number of row ranks in each part of a hot set of some rows, which is divided into
// at most a number of parts. The last part may have fewer.
func PartRows(rows, parts int) int { return max(1, (rows+parts-1)/parts) }

// Division is a hot set that is divided among several jobs of aggregators. Each of its shares is a list of
// parts, in ascending order, and its ranks count the scalars of these parts: local ranks, the only ones in
// frames and harvests of the share's job. It is immutable and safe for concurrent use.
//
// To the packer, the shares lie behind one another in pages: each begins with a page of its own, so that no
// stripe has pairs of two.
type Division struct {
	hotSet    [32]byte   // its fingerprint
	partRows  uint32     // the last part may have fewer
	partSlots uint32     // its scalars
	parts     [][]uint32 // of each share
	slots     []int      // of each share
	pages     []uint32   // the first page of each share, and the number of all pages

	// to has for each part what turns the rank of one of its scalars into that in the pages, by addition
	// modulo 2^32.
	to [MaxParts]uint32
}

// Divide divides a hot set, of some rows of dim scalars each and with a fingerprint, into [MaxParts] parts, or
// fewer if it has fewer rows, and deals these in turn among a number of shares. The error is [ErrConfig].
func Divide(rows, dim int, hotSet [32]byte, count int) (*Division, error) {
	of := PartRows(rows, MaxParts)
	parts := (rows + of - 1) / of
	switch {
	case count < 1 || count > Max:
		return nil, fmt.Errorf("%w: %d shares, possible are 1 to %d", ErrConfig, count, Max)
	case count > parts:
		return nil, fmt.Errorf("%w: %d shares of a hot set of %d rows: each needs a row at least", ErrConfig, count, rows)
	}
	d := &Division{hotSet: hotSet, partRows: uint32(of), partSlots: uint32(of * dim), parts: make([][]uint32, count),
		pages: []uint32{0}}
	for part := range uint32(parts) {
		owner := int(part) % count
		d.parts[owner] = append(d.parts[owner], part)
	}
	for _, parts := range d.parts {
		base := d.pages[len(d.pages)-1]
		slots := 0
		for _, part := range parts {
			first := int(part) * of
			d.to[part] = base*wire.PageRanks + uint32(slots) - uint32(first*dim)
			slots += (min(first+of, rows) - first) * dim
		}
		d.slots = append(d.slots, slots)
		d.pages = append(d.pages, base+uint32(slots+wire.PageRanks-1)/wire.PageRanks)
	}
	if n := d.Pages(); n > wire.MaxPages {
		return nil, fmt.Errorf("%w: %d shares of %d slots take %d pages, frames name %d: use fewer shares or hot rows",
			ErrConfig, count, rows*dim, n, wire.MaxPages)
	}
	return d, nil
}

// Len returns the number of shares.
func (d *Division) Len() int { return len(d.parts) }

// Slots returns the number of scalars of a share.
func (d *Division) Slots(share int) int { return d.slots[share] }

// Rank returns the scalar rank in the hot set of a local rank of a share, or false if the share has no such
// rank.
func (d *Division) Rank(share int, local uint32) (rank uint32, ok bool) {
	if int64(local) >= int64(d.slots[share]) {
		return 0, false
	}
	return d.parts[share][local/d.partSlots]*d.partSlots + local%d.partSlots, true
}

// Fingerprint identifies the mapping from keys to the local ranks of a share: the SHA-256 of the hot set's
// fingerprint, the rows of a part, and the share's parts. Parties may exchange local ranks only if their
// fingerprints are equal.
func (d *Division) Fingerprint(share int) [32]byte {
	b := binary.BigEndian.AppendUint32(d.hotSet[:], d.partRows)
	for _, part := range d.parts[share] {
		b = binary.BigEndian.AppendUint32(b, part)
	}
	return sha256.Sum256(b)
}

// Divides reports whether it is the hot set with a fingerprint that is divided.
func (d *Division) Divides(hotSet [32]byte) bool { return d.hotSet == hotSet }

// Pages returns the number of pages of all shares.
func (d *Division) Pages() int { return int(d.pages[len(d.parts)]) }

// FirstPage returns the first page of a share.
func (d *Division) FirstPage(share int) uint32 { return d.pages[share] }

// Of returns the share to which a page belongs.
func (d *Division) Of(page uint32) int {
	share := 0
	for d.pages[share+1] <= page {
		share++
	}
	return share
}

// PageSlots returns the number of slots that are used of a page.
func (d *Division) PageSlots(page int) int {
	share := d.Of(uint32(page))
	return min(d.slots[share]-(page-int(d.pages[share]))*wire.PageRanks, wire.PageRanks)
}

// Place turns the rank of a row's first scalar into that in the pages.
func (d *Division) Place(row, rank uint32) uint32 { return rank + d.to[row/d.partRows] }

// PlaceAll is Place for the found rows of keys, whose ranks count from 1, of rows of one scalar.
func (d *Division) PlaceAll(found []uint32) {
	for i, f := range found {
		if f != 0 {
			found[i] = f + d.to[(f-1)/d.partRows]
		}
	}
}
