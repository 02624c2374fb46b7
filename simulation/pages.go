// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// hotRows are the rows of a life's hot set. Workers push some of them: all, or, if the set has
// several pages, few, of which most are at the edges of pages.
type hotRows struct {
	keys   []uint64 // by rank
	pushed []int    // rows, in rank order
	dim    int
	params map[int]int // parameters by slot; nil: they are their slots
}

// drawPages gives one life in sixteen a hot set of two or three pages.
func (o Options) drawPages() int {
	if rng := o.named("pages"); rng.IntN(16) == 0 {
		return 2 + rng.IntN(2)
	}
	return 1
}

// placeRows places the rows that are pushed in the hot set.
func (o Options) placeRows(p *plan) *hotRows {
	h := &hotRows{dim: p.dim}
	rows := p.hot
	if p.pages > 1 {
		rng, perPage := o.named("rows"), wire.PageRanks/p.dim
		last := 1 + rng.IntN(perPage-1)
		if rng.IntN(4) == 0 {
			last = 1 + rng.IntN(3)
		}
		// A row whose dimension does not divide a page's ranks is in two pages.
		edge := func(page int) int { return page * wire.PageRanks / p.dim }
		rows = edge(p.pages-1) + last
		for len(h.pushed) < p.hot {
			row := rng.IntN(rows)
			if rng.IntN(4) > 0 {
				row = min(max(min(edge(rng.IntN(p.pages+1)), rows-1)+rng.IntN(9)-4, 0), rows-1)
			}
			if at, is := slices.BinarySearch(h.pushed, row); !is {
				h.pushed = slices.Insert(h.pushed, at, row)
			}
		}
		h.params = map[int]int{}
		for i, row := range h.pushed {
			for c := range p.dim {
				h.params[row*p.dim+c] = i*p.dim + c
			}
		}
	} else {
		for row := range rows {
			h.pushed = append(h.pushed, row)
		}
	}
	h.keys = make([]uint64, rows)
	for row := range rows {
		h.keys[row] = 1<<30 + uint64(row)
	}
	for i, row := range h.pushed {
		h.keys[row] = 1000 + uint64(i)
	}
	return h
}

// pushedKeys are the keys of the pushed rows, in rank order.
func (h *hotRows) pushedKeys() (keys []uint64) {
	for _, row := range h.pushed {
		keys = append(keys, h.keys[row])
	}
	return keys
}

// padKeys puts keys that no worker pushes before the hot rows of a cluster or of agents, in one
// life in sixteen, so that the rows are where the first page ends and the second begins.
func (o Options) padKeys(keys []uint64, dim int) []uint64 {
	rng := o.named("padding")
	if rng.IntN(16) > 0 {
		return keys
	}
	padded := make([]uint64, wire.PageRanks/dim-rng.IntN(len(keys)))
	for i := range padded {
		padded[i] = 1<<62 + uint64(i)
	}
	return append(padded, keys...)
}

// paramAt returns the parameter of a slot, or -1 if workers do not push it.
func (h *hotRows) paramAt(slot int) int {
	if h.params == nil {
		return slot
	}
	if param, is := h.params[slot]; is {
		return param
	}
	return -1
}

// eachSum calls do for what a bank holds of each pushed parameter.
func (h *hotRows) eachSum(bank []int64, do func(param int, sum int64)) {
	param := 0
	for _, row := range h.pushed {
		for _, sum := range bank[row*h.dim:][:h.dim] {
			do(param, sum)
			param++
		}
	}
}

// Faults of an aggregator with pages.
const (
	ignoresPages  fault = "the aggregator ignores the pages of stripes"
	takesPrevious fault = "the aggregator takes the page of the previous stripe"
	takesBeyond   fault = "the aggregator takes a page beyond the job's for one of its pages"
	losesBlock    fault = "the aggregator forgets at a swap that a block was touched"
)

// misreadPages makes the aggregator read other pages than it was sent.
func (s *workersLife) misreadPages(pkts []link.Packet) {
	if s.options.fault == "" {
		return
	}
	for _, p := range pkts {
		h, err := wire.ParseHeader(p.Payload)
		n, bad := wire.StripeCount(p.Payload)
		if err != nil || bad != nil || h.Type != wire.TypeHot {
			continue
		}
		before := wire.StripeAt(p.Payload, 0).Page()
		for i := range n {
			stripe := wire.StripeAt(p.Payload, i)
			page := stripe.Page()
			switch s.options.fault {
			case ignoresPages:
				stripe.SetPage(0, stripe.Mask())
			case takesPrevious:
				stripe.SetPage(before, stripe.Mask())
			case takesBeyond:
				stripe.SetPage(page%s.plan.pages, stripe.Mask())
			}
			before = page
		}
	}
}

// wildSender is admitted at the aggregator, and names slots that the job does not have.
const wildSender = 900

// planWild makes a program of a job of several pages name slots beyond the job's, around its last
// one and far away. The aggregator must refuse each of its frames.
func (s *workersLife) planWild() error {
	p, rng, from := &s.plan, s.Named("wild"), s.workers[0].host
	if p.pages < 2 || p.kinds&Hostile == 0 {
		return nil
	}
	h := wire.Header{Type: wire.TypeHot, Job: job, Sender: wildSender, Epoch: s.newEpoch(), Seq: wire.FirstSeq}
	sender := aggregator.SenderConfig{ID: h.Sender, Epoch: h.Epoch, IP: from.Endpoint().IP, Port: world.StrangePort}
	if err := s.model.AddSender(job, sender); err != nil {
		return err
	}
	if p.layout == packer.Dense {
		h.Flags |= wire.FlagDense
	}
	for range 8 {
		payload := make([]byte, wire.HotLen(1))
		h.Put(payload)
		h.Seq++
		stripe, lane := wire.StripeAt(payload, 0), rng.IntN(wire.Lanes)
		page, within := p.pages+rng.IntN(wire.MaxPages-p.pages), rng.IntN(p.hot*p.dim)
		switch rng.IntN(3) {
		case 0:
			page = p.pages
		case 1: // the first slots of the last page that are none, if it has such
			if left := p.pages*wire.PageRanks - s.hot.Slots(); left > 2*wire.Lanes {
				page, within = p.pages-1, wire.PageRanks-left+wire.Lanes+rng.IntN(left-2*wire.Lanes)
			}
		}
		slot := within
		if p.layout == packer.LaneAligned {
			slot = within / wire.Lanes
			lane = within % wire.Lanes
		}
		stripe.SetPage(page, 1<<lane)
		stripe.SetSlot(lane, uint16(slot))
		stripe.SetValue(lane, 1)
		s.After(time.Duration(rng.Int64N(int64(p.trouble))), func() {
			if !s.Healed() {
				s.Net.Forge(from, s.switched, payload)
			}
		})
	}
	return nil
}
