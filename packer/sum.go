// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// ErrSum means that a sum of batches is out of the range of the job's arithmetic: push the batches
// separately.
var ErrSum = errors.New("packer: a sum of batches is out of the job's range")

// Part is one of several batches of a sum.
type Part struct {
	Keys     []uint64
	Prepared *Prepared // instead of Keys, or nil
	Grads    []float32
}

// sums adds up the hot gradients of several batches.
type sums struct {
	pages []*sumPage // nil where nothing was added yet
	pairs int        // gradients added

	keys  []uint64  // cold rows of all parts
	grads []float32 // their gradients, then the sums
	nCold int

	sifted bool // keys may have some of the hot set
}

// sumPage has the sums of a page. Indexing slots by a uint16 needs no bounds check.
type sumPage struct {
	slots   [PageSlots]int64
	touched [PageSlots / 64]uint64 // a bit for each slot
}

// BeginSum is [Packer.Begin] of several batches as one, in a job with exact arithmetic whose unit
// is 2^exp. Hot gradients of the same slot are rounded to that unit, as in the aggregator, and
// added up. Frames hold a sum as up to three float32 of its sign that add up to it exactly, each a
// multiple of the unit. So the aggregator's sums get the same bits, and no intermediate sum is out
// of range if the final one is not. Slots with a sum of 0 are sent too. Cold rows, and hot ones
// that Config.Numbers excludes, are sent unchanged.
//
// It returns the number of hot gradients added up. The parts' slices are not used after it returns.
// The errors are [ErrSum] and those of Begin and BeginPrepared for one of the parts; after an error
// there is no batch.
func (p *Packer) BeginSum(exp int, parts []Part) (pairs int, err error) {
	p.batch = batch{}
	if p.sums == nil {
		p.sums = &sums{}
	}
	s := p.sums
	if n := p.current.Load().pages; n != len(s.pages) {
		s.pages = make([]*sumPage, n)
	}
	s.nCold, s.pairs, s.sifted = 0, 0, false
	defer func() {
		if err != nil {
			s.clearSums()
		}
	}()
	units := fixedpoint.Format{Exp: exp}
	prepared, vanished := p.prepared[:0], 0
	for i := range parts {
		part := &parts[i]
		keys, where := part.Keys, slotList{}
		if b := part.Prepared; b != nil {
			if err := p.placePrepared(b); err != nil {
				return 0, err
			}
			prepared = append(prepared, b)
			keys, where = b.keys, b.placed.Load().slotList
		}
		if err := p.checkBatch(keys, part.Grads); err != nil {
			return 0, err
		}
		sift := p.siftable(part.Grads)
		if p.numbers.least != 0 {
			var n int
			n, p.finite = p.numbers.countVanished(part.Grads)
			vanished += n
		}
		if !p.finite {
			if err := p.checkFinite(keys, part.Grads); err != nil {
				return 0, err
			}
		}
		if part.Prepared == nil || sift != nil {
			p.resetScratch(&p.scratch)
			p.placeKeys(&p.scratch, keys, 0, sift)
			s.sifted = s.sifted || p.scratch.sifted
			where = p.slotListOf(&p.scratch)
		}
		if !s.addHot(units, p.layout, &where, part.Grads) {
			return 0, fmt.Errorf("%w: it ends at 2^%d", ErrSum, 63+exp)
		}
		s.takeSums(&where, keys, part.Grads, p.dim)
		s.pairs += where.pairs
	}
	p.prepared = prepared
	var rows *RowNumbers
	if len(prepared) == len(parts) && !s.sifted && (p.coder == nil || !p.current.Load().hasColdRows()) {
		rows = p.mergeNumbers(prepared)
	}
	clear(prepared)
	if err := p.startSum(units, rows); err != nil {
		return 0, err
	}
	p.vanished = vanished
	return s.pairs, nil
}

// addHot adds the hot gradients of a part. It returns false if a gradient or a sum is out of range.
func (s *sums) addHot(units fixedpoint.Format, layout Layout, where *slotList, grads []float32) bool {
	var wrong int64 // negative: out of range
	if layout == Dense && len(s.pages) == 1 {
		page, slots := s.pageOf(0), where.slots[:where.pairs]
		for i, at := range where.at[:where.pairs] {
			n, err := units.FromBits(math.Float32bits(grads[at]))
			if err != nil {
				wrong = -1
			}
			wrong |= page.addOne(slots[i], n)
		}
		return wrong >= 0
	}
	where.eachHot(func(page uint32, lane int, at uint32, slot uint16) {
		n, err := units.FromBits(math.Float32bits(grads[at]))
		if err != nil {
			wrong = -1
		}
		wrong |= s.pageOf(page).addOne(uint16(layout.within(lane, slot)), n)
	})
	return wrong >= 0
}

// pageOf returns the sums of a page.
func (s *sums) pageOf(page uint32) *sumPage {
	p := s.pages[page]
	if p == nil {
		p = &sumPage{}
		s.pages[page] = p
	}
	return p
}

// addOne adds to a slot, and returns a negative number on overflow.
func (p *sumPage) addOne(slot uint16, n int64) int64 {
	old := p.slots[slot]
	sum := old + n
	p.slots[slot] = sum
	p.touched[slot/64] |= 1 << (slot % 64)
	return (old ^ sum) & (n ^ sum)
}

// clearSums zeroes the sums.
func (s *sums) clearSums() {
	for _, p := range s.pages {
		if p != nil {
			*p = sumPage{}
		}
	}
}

func (s *sums) takeSums(where *slotList, keys []uint64, grads []float32, dim int) {
	n := s.nCold + len(where.cold)
	s.keys, s.grads = grown(s.keys, n), grown(s.grads, n*dim)
	to, rows := s.keys[s.nCold:n], s.grads[s.nCold*dim:n*dim]
	for i, at := range where.cold {
		to[i] = keys[at]
	}
	if dim == 1 {
		for i, at := range where.cold {
			rows[i] = grads[at]
		}
	} else {
		for i, at := range where.cold {
			copy(rows[i*dim:][:dim], grads[int(at)*dim:])
		}
	}
	s.nCold = n
}

// startSum makes the sums the current batch, and clears them.
func (p *Packer) startSum(units fixedpoint.Format, rows *RowNumbers) error {
	s, t := p.sums, &p.scratch
	p.resetScratch(t)
	t.sifted = s.sifted || t.places.hasColdRows()
	t.nCold, t.cold = s.nCold, grown(t.cold, s.nCold)
	for i := range s.nCold {
		t.cold[i] = uint32(i)
	}
	p.groupCold(t, s.keys) // in the order of mergeNumbers
	at, most := s.nCold*p.dim, s.pairs*fixedpoint.SplitParts
	s.grads = grown(s.grads, at+most)
	if p.layout == Dense {
		t.growLanes(most)
	}
	// In rank order, which is memory order.
	for number, page := range s.pages {
		if page == nil {
			continue
		}
		for word, mask := range page.touched[:t.places.slotWords(p.hotSet, number)] {
			page.touched[word] = 0
			for ; mask != 0; mask &= mask - 1 {
				slot := uint16(word*64 + bits.TrailingZeros64(mask))
				n, ok := units.Split(page.slots[slot], (*[fixedpoint.SplitParts]float32)(s.grads[at:]))
				if !ok {
					return fmt.Errorf("%w: it ends at 2^%d", ErrSum, 63+units.Exp)
				}
				page.slots[slot] = 0
				p.placeSum(t, number, slot, uint32(at), n)
				at += n
			}
		}
	}
	p.batch = batch{slotList: p.slotListOf(t), keys: s.keys[:s.nCold], grads: s.grads[:at], rows: rows}
	p.aimBatch()
	return nil
}

// slotWords is the number of 64-bit words with a bit for each slot of a page.
func (p *places) slotWords(hot *HotSet, page int) int {
	switch {
	case hot == nil:
		return 0
	case p.shares != nil:
		return (p.shares.PageSlots(page) + 63) / 64
	}
	return (min(hot.Slots()-page*PageSlots, PageSlots) + 63) / 64
}

// placeSum appends n gradients from position at for the same slot of a page.
func (p *Packer) placeSum(s *scratch, page int, rank uint16, at uint32, n int) {
	if s.places.pages > 1 {
		for i := range uint32(n) {
			s.dealGradient(p.layout, uint32(page)*PageSlots+uint32(rank), at+i)
		}
		return
	}
	if p.layout == Dense {
		// Always writes the maximum; excess entries are overwritten or unused.
		where := (*[fixedpoint.SplitParts]uint32)(s.at[s.pairs:])
		slots := (*[fixedpoint.SplitParts]uint16)(s.slots[s.pairs:])
		for i := range where {
			where[i], slots[i] = at+uint32(i), rank
		}
		s.pairs += n
		return
	}
	for i := range uint32(n) {
		s.alignSlot(int(rank%wire.Lanes), at+i, rank/wire.Lanes)
	}
}
