// SPDX-License-Identifier: Apache-2.0

// Package share divides a hot set among several jobs of aggregators, so that one training can have
// them at several places. Its parts are ranges of equally many rows, at most 64. A [Plan] says
// which share has which of them; [Divide] deals them in turn.
//
// Units: ranks, slots and pages count scalars as in package packer: a row of dimension d has d of
// them, and a page has 65,536.
//
// Errors wrap [ErrConfig]; no other function returns one.
//
// A [Division] belongs to whoever made it, keeps no memory of its caller, and may be used by
// several goroutines.
//
// Stability: experimental.
package share

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/libra-ina/libra/wire"
)

const (
	// MaxParts is the largest number of parts of a hot set.
	MaxParts = 64
	// Max is the largest number of shares of a job: a worker has a flow to each, beside those to
	// [wire.MaxServers] servers, and a bit for each flow.
	Max = 31
)

// ErrConfig is in the errors of [Divide] and [New].
var ErrConfig = errors.New("share: a hot set cannot be divided so")

// PartRows returns the number of row ranks in each part of a hot set of some rows, which is divided
// into at most a number of parts. The last part may have fewer.
func PartRows(rows, parts int) int { return max(1, (rows+parts-1)/parts) }

// Cold is where a worker sends a part that it has no share for: to the parameter server, as cold
// rows.
const Cold = -1

// Plan says which parts each share has, and where a worker sends each part.
type Plan struct {
	// PartRows is the number of row ranks in a part; the last may have fewer.
	PartRows int
	// Shares are the parts of each share, in ascending order. Several shares may have a part.
	Shares [][]uint32
	// To has for each part the share to which the worker sends it, which has that part, or [Cold].
	To []int
}

// Division is a hot set that is divided among several jobs of aggregators. Each of its shares is a
// list of parts, in ascending order, and its ranks count the scalars of these parts: local ranks,
// the only ones in frames and harvests of the share's job. It is immutable and safe for concurrent
// use.
//
// To the packer, the shares lie behind one another in pages: each begins with a page of its own, so
// that no stripe has pairs of two.
type Division struct {
	hotSet    [32]byte   // its fingerprint
	partRows  uint32     // the last part may have fewer
	partSlots uint32     // its scalars
	parts     [][]uint32 // of each share
	slots     []int      // of each share
	pages     []uint32   // the first page of each share, and the number of all pages

	// to has for each part what turns the rank of one of its scalars into that in the pages, by
	// addition modulo 2^32.
	to   [MaxParts]uint32
	cold uint64 // a bit for each part that the worker sends to the server
}

// Divide divides a hot set, of some rows of dim scalars each and with a fingerprint, into
// [MaxParts] parts, or fewer if it has fewer rows, and deals these in turn among a number of
// shares. The error is [ErrConfig].
func Divide(rows, dim int, hotSet [32]byte, count int) (*Division, error) {
	of := PartRows(rows, MaxParts)
	parts := (rows + of - 1) / of
	switch {
	case count < 1 || count > Max:
		return nil, fmt.Errorf("%w: %d shares, possible are 1 to %d", ErrConfig, count, Max)
	case count > parts:
		return nil, fmt.Errorf("%w: %d shares of a hot set of %d rows: each needs a row at least", ErrConfig, count, rows)
	}
	plan := Plan{PartRows: of, Shares: make([][]uint32, count)}
	for part := range parts {
		to := part % count
		plan.Shares[to], plan.To = append(plan.Shares[to], uint32(part)), append(plan.To, to)
	}
	return New(rows, dim, hotSet, plan)
}

// New divides a hot set, of some rows of dim scalars each and with a fingerprint, as a plan says,
// and keeps nothing of that. The error is [ErrConfig].
func New(rows, dim int, hotSet [32]byte, plan Plan) (*Division, error) {
	if err := plan.check(rows); err != nil {
		return nil, err
	}
	d := &Division{hotSet: hotSet, partRows: uint32(plan.PartRows), partSlots: uint32(plan.PartRows * dim),
		pages: []uint32{0}}
	for i, parts := range plan.Shares {
		base := d.pages[i]
		slots := 0
		for _, part := range parts {
			first := int(part) * plan.PartRows
			if plan.To[part] == i {
				d.to[part] = base*wire.PageRanks + uint32(slots) - uint32(first*dim)
			}
			slots += (min(first+plan.PartRows, rows) - first) * dim
		}
		d.parts, d.slots = append(d.parts, slices.Clone(parts)), append(d.slots, slots)
		d.pages = append(d.pages, base+uint32(slots+wire.PageRanks-1)/wire.PageRanks)
	}
	for part, to := range plan.To {
		if to == Cold {
			d.cold |= 1 << part
		}
	}
	if n := d.Pages(); n > wire.MaxPages {
		return nil, fmt.Errorf("%w: %d shares of %d slots take %d pages, frames name %d: use fewer shares or hot rows",
			ErrConfig, len(plan.Shares), rows*dim, n, wire.MaxPages)
	}
	return d, nil
}

// check refuses plans that no hot set of some rows can follow.
func (p *Plan) check(rows int) error {
	switch count := len(p.Shares); {
	case count < 1 || count > Max:
		return fmt.Errorf("%w: %d shares, possible are 1 to %d", ErrConfig, count, Max)
	case rows < 1 || p.PartRows < 1 || (rows-1)/p.PartRows >= MaxParts:
		return fmt.Errorf("%w: parts of %d rows of a hot set of %d: it has at most %d parts", ErrConfig, p.PartRows, rows,
			MaxParts)
	case len(p.To) != (rows-1)/p.PartRows+1:
		return fmt.Errorf("%w: a hot set of %d rows has %d parts of %d, the plan %d", ErrConfig, rows,
			(rows-1)/p.PartRows+1, p.PartRows, len(p.To))
	}
	for i, parts := range p.Shares {
		if len(parts) == 0 {
			return fmt.Errorf("%w: share %d has no parts", ErrConfig, i)
		}
		for j, part := range parts {
			if int64(part) >= int64(len(p.To)) || j > 0 && part <= parts[j-1] {
				return fmt.Errorf("%w: share %d lists part %d, of %d, in ascending order: %v", ErrConfig, i, part, len(p.To),
					parts)
			}
		}
	}
	for part, to := range p.To {
		if to != Cold && (to < 0 || to >= len(p.Shares) || !slices.Contains(p.Shares[to], uint32(part))) {
			return fmt.Errorf("%w: part %d goes to share %d, which does not have it", ErrConfig, part, to)
		}
	}
	return nil
}

// Len returns the number of shares.
func (d *Division) Len() int { return len(d.parts) }

// Slots returns the number of scalars of a share.
func (d *Division) Slots(share int) int { return d.slots[share] }

// AllSlots returns the number of scalars of each share. The slice belongs to the division.
func (d *Division) AllSlots() []int { return d.slots }

// Rank returns the scalar rank in the hot set of a local rank of a share, or false if the share has
// no such rank.
func (d *Division) Rank(share int, local uint32) (rank uint32, ok bool) {
	if int64(local) >= int64(d.slots[share]) {
		return 0, false
	}
	return d.parts[share][local/d.partSlots]*d.partSlots + local%d.partSlots, true
}

// Fingerprint identifies the mapping from keys to the local ranks of a share: the SHA-256 of the
// hot set's fingerprint, the rows of a part, and the share's parts. Parties may exchange local
// ranks only if their fingerprints are equal.
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

// HasCold reports whether the worker sends some parts to the server.
func (d *Division) HasCold() bool { return d.cold != 0 }

// Chill makes the found rows of keys, whose ranks count from 1, not found if they are in a part
// that the worker sends to the server.
func (d *Division) Chill(found []uint32) {
	for i, f := range found {
		if f != 0 && d.cold>>((f-1)/d.partRows)&1 != 0 {
			found[i] = 0
		}
	}
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
