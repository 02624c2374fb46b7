// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"github.com/libra-ina/libra/wire"
)

// A stripe has pairs of one page. So the pairs of a job of several pages are dealt, in the order of
// the batch, each to a stripe of its page that has room, or to a new one. A batch has at most as
// many stripes that are not full as it has pages, in dense frames.

// dealer knows where the next pair of each page goes.
type dealer struct {
	dense   []openStripe  // by page
	aligned []pageStripes // by page
	touched []uint32      // pages with pairs
}

// openStripe is the stripe of a page that has room in a dense frame; none if it has no pairs.
type openStripe struct{ stripe, pairs uint32 }

// pageStripes are the stripes of a page in lane-aligned frames.
type pageStripes struct {
	stripes []uint32
	used    [wire.Lanes]uint32 // pairs in each lane
}

// resetPages prepares for another batch of a job of some pages.
func (d *dealer) resetPages() {
	for _, page := range d.touched {
		if d.dense != nil {
			d.dense[page] = openStripe{}
		} else {
			p := &d.aligned[page]
			p.stripes, p.used = p.stripes[:0], [wire.Lanes]uint32{}
		}
	}
	d.touched = d.touched[:0]
}

// dealDense puts the gradient at a position into the open stripe of its page.
func (s *scratch) dealDense(rank, at uint32) {
	page := rank / wire.PageRanks
	o := &s.dense[page]
	if o.pairs == 0 {
		o.stripe = s.addStripe(page)
	}
	i := o.stripe*wire.Lanes + o.pairs
	s.at[i], s.slots[i] = at, uint16(rank)
	s.masks[o.stripe] |= 1 << o.pairs
	if o.pairs++; o.pairs == wire.Lanes {
		o.pairs = 0
	}
	s.pairs++
}

// dealAligned puts the gradient at a position into the first stripe of its page with its lane free.
func (s *scratch) dealAligned(rank, at uint32) {
	page, within := rank/wire.PageRanks, rank%wire.PageRanks
	lane, p := within%wire.Lanes, &s.aligned[page]
	k := p.used[lane]
	p.used[lane]++
	if int(k) == len(p.stripes) {
		p.stripes = append(p.stripes, s.addStripe(page))
	}
	stripe := p.stripes[k]
	i := stripe*wire.Lanes + lane
	s.at[i], s.slots[i] = at, uint16(within/wire.Lanes)
	s.masks[stripe] |= 1 << lane
	s.pairs++
}

// addStripe adds an empty stripe of a page.
func (s *scratch) addStripe(page uint32) uint32 {
	k := len(s.masks)
	s.masks = append(s.masks, page<<wire.Lanes)
	lanes := (k + 1) * wire.Lanes
	s.at, s.slots = grown(s.at, lanes), grown(s.slots, lanes)
	clear(s.slots[k*wire.Lanes : lanes]) // unused lanes are zero
	s.touched = append(s.touched, page)
	return uint32(k)
}

// dealGradient puts a gradient into a stripe of its page.
func (s *scratch) dealGradient(layout Layout, rank, at uint32) {
	if layout == Dense {
		s.dealDense(rank, at)
	} else {
		s.dealAligned(rank, at)
	}
}

// dealRow deals the gradients of a row, which start at a position.
func (s *scratch) dealRow(layout Layout, rank, at uint32, dim int) {
	for j := range uint32(dim) {
		s.dealGradient(layout, rank+j, at+j)
	}
}

// dealPairs is separateHot and dealDense in one pass, for rows of one gradient.
func (s *scratch) dealPairs(found []uint32, first uint32) {
	cold, n := s.cold[s.nCold:][:len(found)], 0
	for i, f := range found {
		at := first + uint32(i)
		if f != 0 {
			s.dealDense(f-1, at)
		} else {
			cold[n] = at
			n++
		}
	}
	s.nCold += n
}
