// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/bits"

	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/wire"
)

// slotList describes where each gradient of a batch goes, without the gradients. Data
// for lanes and stripes is in frame order, so that writing a frame reads all of it
// sequentially, except for the gradients.
type slotList struct {
	masks []uint32 // for each stripe its used lanes, and its page above them
	at    []uint32 // for each lane its gradient's position in the batch
	slots []uint16 // for each lane the uint16 of the frame: slot (lane-aligned) or rank (dense), in the page
	cold  []uint32 // positions of the cold keys
	ends  []int    // end of each server's keys in cold; nil for one server
	plain int      // cold keys, the first ones, that are not coded though others are
	pairs int      // hot pairs

	places *places // that it is made for

	// In a job with several shares: the stripes by share, and the end of each share's in order.
	order     []uint32
	shareEnds []int
}

func (p *slotList) endOf(server int) int {
	if p.ends == nil {
		return len(p.cold)
	}
	return p.ends[server]
}

func (p *slotList) positionsOf(server int) []uint32 {
	first := 0
	if server > 0 {
		first = p.endOf(server - 1)
	}
	return p.cold[first:p.endOf(server)]
}

// lanesOf returns the positions and slots of a stripe's gradients.
func (p *slotList) lanesOf(stripe int) (at *[wire.Lanes]uint32, slots *[wire.Lanes]uint16) {
	first := stripe * wire.Lanes
	return (*[wire.Lanes]uint32)(p.at[first:]), (*[wire.Lanes]uint16)(p.slots[first:])
}

// eachHot calls yield for each hot pair, stripe by stripe.
func (p *slotList) eachHot(yield func(page uint32, lane int, at uint32, slot uint16)) {
	for k, mask := range p.masks {
		at, slots := p.lanesOf(k)
		page := mask >> wire.Lanes
		for mask &= wire.LaneMask; mask != 0; mask &= mask - 1 {
			j := bits.TrailingZeros32(mask)
			yield(page, j, at[j], slots[j])
		}
	}
}

// scratch is the memory for placing batches. It grows to the largest batch and is
// reused; its slices may be longer than the part in use.
type scratch struct {
	slotList
	nCold int
	found []uint32        // for each key its row rank + 1, or 0
	rows  []uint32        // indices of hot keys
	dealt []uint32        // cold, by server
	used  [wire.Lanes]int // LaneAligned: pairs in each lane

	sifted bool // cold may have keys of the hot set

	dealer // of jobs of several pages
}

// resetScratch prepares for another batch.
func (p *Packer) resetScratch(s *scratch) {
	if to := p.current.Load(); s.places != to {
		s.places, s.dealer = to, dealer{}
		s.order, s.shareEnds = nil, nil
	}
	if pages := s.places.pages; pages > 1 {
		switch {
		case p.layout == Dense && s.dense == nil:
			s.dense = make([]openStripe, pages)
		case p.layout == LaneAligned && s.aligned == nil:
			s.aligned = make([]pageStripes, pages)
		}
		s.resetPages()
	}
	s.pairs, s.nCold, s.plain, s.sifted = 0, 0, 0, false
	s.masks, s.used, s.ends = s.masks[:0], [wire.Lanes]int{}, s.ends[:0]
}

// grown extends s to at least n elements.
func grown[T any](s []T, n int) []T {
	return append(s, make([]T, max(0, n-len(s)))...)
}

// placeKeys appends the places of the gradients of keys, which are at positions first and following
// in the batch. sift, if not nil, has their gradients: hot rows that Config.Numbers excludes become
// cold.
func (p *Packer) placeKeys(s *scratch, keys []uint64, first int, sift []float32) {
	s.found = grown(s.found, len(keys))
	s.cold = grown(s.cold, s.nCold+len(keys))
	found := s.found[:len(keys)]
	if p.hotSet == nil {
		clear(found)
	} else {
		p.hotSet.index.findAll(found, keys)
	}
	shares := s.places.shares
	if s.places.hasColdRows() {
		s.sifted = true
		shares.Chill(found)
	}
	if sift != nil {
		s.sifted = true
		for i, f := range found {
			if f != 0 && !p.numbers.fit(sift[i*p.dim:][:p.dim]) {
				found[i] = 0
			}
		}
	}
	if p.layout == Dense && p.dim == 1 {
		if shares != nil {
			shares.PlaceAll(found)
		}
		if s.places.pages > 1 {
			s.dealPairs(found, uint32(first))
			return
		}
		s.growLanes(s.pairs + len(keys))
		s.placePairs(found, uint32(first))
		return
	}
	s.rows = grown(s.rows, len(keys))
	for _, i := range s.separateHot(found, uint32(first)) {
		rank, at := (found[i]-1)*uint32(p.dim), (uint32(first)+i)*uint32(p.dim)
		if shares != nil {
			rank = shares.Place(found[i]-1, rank)
		}
		switch {
		case s.places.pages > 1:
			s.dealRow(p.layout, rank, at, p.dim)
		case p.layout == Dense:
			s.placeDense(rank, at, p.dim)
		default:
			s.placeAligned(rank, at, p.dim)
		}
	}
}

// separateHot lists the cold keys in s.cold and returns the indices of the hot ones.
// It writes every position to both lists and advances one of them: a branch would
// be mispredicted at every other cold key.
func (s *scratch) separateHot(found []uint32, first uint32) (hot []uint32) {
	hot, cold, n := s.rows[:len(found)], s.cold[s.nCold:][:len(found)], 0
	for i, f := range found {
		hot[n] = uint32(i)
		cold[i-n] = first + uint32(i)
		if f != 0 {
			n++
		}
	}
	s.nCold += len(found) - n
	return hot[:n]
}

// placePairs is separateHot and placeDense in one pass, for rows of one gradient.
func (s *scratch) placePairs(found []uint32, first uint32) {
	at, slots, cold := s.at[s.pairs:][:len(found)], s.slots[s.pairs:][:len(found)], s.cold[s.nCold:][:len(found)]
	n := 0
	for i, f := range found {
		at[n] = first + uint32(i)
		slots[n] = uint16(f - 1)
		cold[i-n] = first + uint32(i)
		if f != 0 {
			n++
		}
	}
	s.pairs += n
	s.nCold += len(found) - n
}

// growLanes makes room for pairs, in whole stripes.
func (s *scratch) growLanes(pairs int) {
	lanes := VectorStripes(pairs) * wire.Lanes
	s.at, s.slots = grown(s.at, lanes), grown(s.slots, lanes)
}

// placeDense appends the gradients of a row, which start at position at.
func (s *scratch) placeDense(rank, at uint32, dim int) {
	s.growLanes(s.pairs + dim)
	for j := range uint32(dim) {
		s.at[s.pairs] = at + j
		s.slots[s.pairs] = uint16(rank + j)
		s.pairs++
	}
}

// placeAligned puts each gradient of a row into the first stripe with its lane
// free.
func (s *scratch) placeAligned(rank, at uint32, dim int) {
	register, slot := rank%wire.Lanes, rank/wire.Lanes
	for j := range uint32(dim) {
		s.alignSlot(int(register), at+j, uint16(slot))
		if register++; register == wire.Lanes {
			register, slot = 0, slot+1
		}
	}
}

// alignSlot puts a gradient into the first stripe with its lane free.
func (s *scratch) alignSlot(lane int, at uint32, slot uint16) {
	k := s.used[lane]
	s.used[lane]++
	if k == len(s.masks) {
		s.masks = append(s.masks, 0)
		s.growLanes(len(s.masks) * wire.Lanes)
		_, slots := s.lanesOf(k)
		clear(slots[:]) // unused lanes are zero
	}
	s.masks[k] |= 1 << lane
	s.pairs++
	i := k*wire.Lanes + lane
	s.at[i], s.slots[i] = at, slot
}

// groupCold sorts the cold keys by server, and within one into those that are coded and those that
// are not.
func (p *Packer) groupCold(s *scratch, keys []uint64) {
	if p.split > 1 {
		p.dealCold(s, keys)
	}
	if p.coder != nil && s.sifted {
		p.separatePlain(s, keys)
	}
}

// dealCold sorts the cold keys by server.
func (p *Packer) dealCold(s *scratch, keys []uint64) {
	cold, hot := s.cold[:s.nCold], p.hotSet
	if !s.sifted { // and the look-up can be saved
		hot = nil
	}
	var next [wire.MaxServers + 1]int // counts, then the place of each server's next key
	for _, at := range cold {
		next[p.split.Owner(hot, keys[at])+1]++
	}
	for server := range int(p.split) {
		next[server+1] += next[server]
	}
	s.ends = append(s.ends[:0], next[1:p.split+1]...)
	s.dealt = grown(s.dealt, len(cold))
	for _, at := range cold {
		to := &next[p.split.Owner(hot, keys[at])]
		s.dealt[*to] = at
		*to++
	}
	s.cold, s.dealt = s.dealt, s.cold
}

func (p *Packer) mergeCold(s *scratch, prepared []*Prepared) {
	for server := range int(p.split) {
		first := 0
		for _, b := range prepared {
			cold := b.placed.Load().positionsOf(server)
			s.cold = grown(s.cold, s.nCold+len(cold))
			for i, at := range cold {
				s.cold[s.nCold+i] = uint32(first) + at
			}
			s.nCold += len(cold)
			first += len(b.keys)
		}
		if p.split > 1 {
			s.ends = append(s.ends, s.nCold)
		}
	}
}

// mergeHot appends the hot pairs of another batch of the same layout, whose rows start at first.
func (p *Packer) mergeHot(s *scratch, o *slotList, first int) {
	base := uint32(first * p.dim)
	if s.places.pages > 1 {
		o.eachHot(func(page uint32, lane int, at uint32, slot uint16) {
			s.dealGradient(p.layout, page*wire.PageRanks+p.layout.within(lane, slot), base+at)
		})
		return
	}
	if p.layout == LaneAligned {
		o.eachHot(func(_ uint32, lane int, at uint32, slot uint16) { s.alignSlot(lane, base+at, slot) })
		return
	}
	s.growLanes(s.pairs + o.pairs)
	for i, at := range o.at[:o.pairs] {
		s.at[s.pairs+i] = base + at
	}
	copy(s.slots[s.pairs:], o.slots[:o.pairs])
	s.pairs += o.pairs
}

// slotListOf returns the slot list so far. It is valid until the next reset.
func (p *Packer) slotListOf(s *scratch) slotList {
	if p.layout == Dense && s.places.pages <= 1 {
		for n := s.pairs; n > 0; n -= wire.Lanes {
			s.masks = append(s.masks, 1<<min(n, wire.Lanes)-1)
		}
		clear(s.slots[s.pairs : len(s.masks)*wire.Lanes]) // unused lanes are zero
	}
	if shares := s.places.shares; shares != nil {
		s.orderByShare(shares)
	}
	lanes := len(s.masks) * wire.Lanes
	return slotList{masks: s.masks, at: s.at[:lanes], slots: s.slots[:lanes], cold: s.cold[:s.nCold], ends: s.ends,
		plain: s.plain, pairs: s.pairs, places: s.places, order: s.order, shareEnds: s.shareEnds}
}

// orderByShare lists the stripes by share, each share's in their order, and sets the end of each
// share's.
func (p *slotList) orderByShare(shares *share.Division) {
	var next [share.Max + 1]int // counts, then the place of each share's next stripe
	for _, mask := range p.masks {
		next[shares.Of(mask>>wire.Lanes)+1]++
	}
	for i := range shares.Len() {
		next[i+1] += next[i]
	}
	p.shareEnds = append(p.shareEnds[:0], next[1:shares.Len()+1]...)
	p.order = grown(p.order, len(p.masks))[:len(p.masks)]
	for k, mask := range p.masks {
		to := &next[shares.Of(mask>>wire.Lanes)]
		p.order[*to] = uint32(k)
		*to++
	}
}
