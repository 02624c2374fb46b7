// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// aggregatorFaults is what the faults of an aggregator remember.
type aggregatorFaults struct {
	again map[uint32]uint32 // the numbers of frames that got another one, by that
	round map[uint16]uint32 // by first slot: the complete round, or the one in progress
	left  map[uint16]uint32 // by first slot: the bits of the first sum that were sent last
}

func newAggregatorFaults() aggregatorFaults {
	return aggregatorFaults{again: map[uint32]uint32{}, round: map[uint16]uint32{}, left: map[uint16]uint32{}}
}

// spoilSent puts a fault of the aggregator into a frame that leaves it, or that leaves a worker for
// it.
func (s *reducersLife) spoilSent(from *world.Host, payload []byte) {
	h, err := wire.ParseHeader(payload)
	if s.options.fault == "" || err != nil {
		return
	}
	if from == s.switched {
		s.spoilAnswer(h, payload)
		return
	}
	for _, w := range s.workers {
		if w.host == from {
			s.spoilRequest(w, h, payload)
		}
	}
}

// spoilRequest spoils a worker's frame. A number that no frame of a worker had is one that the
// duplicate filter lets pass, in an entry that others do not use.
func (s *reducersLife) spoilRequest(w *summing, h wire.Header, payload []byte) {
	f := &s.faults
	repeated, own := h.Type == wire.TypeHot && h.Flags&wire.FlagRetx != 0, f.numberOf(h.Seq)
	if h.Type == wire.TypeHot {
		w.newest = max(w.newest, own)
	}
	switch {
	case repeated && s.options.fault == noFilter, repeated && s.options.fault == shortFilter && own < w.newest:
		n := uint32(len(f.again)) + 1
		h.Seq = n<<10 | 700 + n%300
		f.again[h.Seq] = own
		h.Put(payload)
	case h.Type != wire.TypeTaken:
	case s.options.fault == anyTaken:
		if r, err := wire.ParseTaken(payload); err == nil {
			r.Round = f.round[r.First]
			r.Put(payload)
		}
	case s.options.fault == keepsTakers:
		if r, err := wire.ParseTaken(payload); err == nil && r.Round > 0 {
			s.takeForOthers(w, h, r)
		}
	}
}

// numberOf returns the number that a worker gave to a frame.
func (f *aggregatorFaults) numberOf(seq uint32) uint32 {
	if own, changed := f.again[seq]; changed {
		return own
	}
	return seq
}

// takeForOthers tells the aggregator that all workers but one have a result.
func (s *reducersLife) takeForOthers(w *summing, h wire.Header, r wire.TakenReport) {
	reply := make([]byte, aggregator.MaxReplyPayload)
	for _, other := range s.workers {
		if h.Sender = other.id; other != w {
			at := other.host.Endpoint()
			s.model.ProcessPayload(at.AddrPort(), wire.PutTaken(make([]byte, wire.TakenLen), h, r), reply)
		}
	}
}

// spoilAnswer spoils the aggregator's answer.
func (s *reducersLife) spoilAnswer(h wire.Header, payload []byte) {
	f := &s.faults
	const sums, confirms = wire.FlagAll | wire.FlagSum, wire.FlagAll | wire.FlagTaken
	switch {
	case h.Type == wire.TypeError || h.Flags&wire.FlagAll == 0:
		if h.Seq = f.numberOf(h.Seq); s.options.fault == mute {
			h.Job++
		}
		h.Put(payload)
	case h.Flags&sums == sums:
		p := wire.StripeAt(payload, 0)
		slot := p.Slot(0)
		f.round[slot] = h.Seq
		if s.options.fault == keepsSlots {
			if h.Seq > 0 {
				p.SetBits(0, s.addBits(p.Bits(0), f.left[slot]))
			}
			f.left[slot] = p.Bits(0)
		}
	case h.Flags&confirms == confirms:
		if r, err := wire.ParseTaken(payload); err == nil {
			f.round[r.First] = r.Round + 1
		}
	}
}

// addBits adds values as frames have them.
func (s *reducersLife) addBits(a, b uint32) uint32 {
	if s.floats {
		return math.Float32bits(math.Float32frombits(a) + math.Float32frombits(b))
	}
	return a + b
}

// watchLink returns the watcher of a worker's link: the place of a worker's faults.
func (s *reducersLife) watchLink(w *summing) world.Watcher {
	if s.options.fault == "" {
		return unwatched{}
	}
	return &deceived{life: s, worker: w, newest: map[uint16]uint32{}, had: map[uint32]bool{}}
}

// deceived changes what a worker receives into what it would have taken it for.
type deceived struct {
	unwatched
	life   *reducersLife
	worker *summing
	newest map[uint16]uint32 // by first slot: the number of the newest contribution
	last   uint16            // the first slot of the newest
	had    map[uint32]bool   // numbers of contributions whose results it got
}

func (d *deceived) Sends(_ wire.Endpoint, payload []byte) {
	if h, err := wire.ParseHeader(payload); err == nil && h.Type == wire.TypeHot && h.Flags&wire.FlagRetx == 0 {
		d.last = wire.StripeAt(payload, 0).Slot(0)
		d.newest[d.last] = h.Seq
	}
}

func (d *deceived) Gets(pkts []link.Packet, _ bool) {
	for _, p := range pkts {
		h, err := wire.ParseHeader(p.Payload)
		if err != nil || h.Type != wire.TypeAck {
			continue
		}
		if _, err := wire.ParseAck(p.Payload, h); err != nil {
			continue
		}
		switch {
		case h.Flags&wire.FlagSum != 0:
			d.getSums(h, p.Payload)
		case h.Flags&wire.FlagTaken != 0:
			d.getConfirmation(h, p.Payload)
		}
	}
}

// roundOf is the round of the newest contribution to a group.
func (d *deceived) roundOf(slot uint16) uint32 {
	return (d.newest[slot] - wire.FirstSeq) / uint32(d.life.shape.InFlight)
}

func (d *deceived) getSums(h wire.Header, payload []byte) {
	slot := wire.StripeAt(payload, 0).Slot(0)
	seq := h.Seq
	if h.Flags&wire.FlagAll != 0 {
		seq = h.Seq*uint32(d.life.shape.InFlight) + uint32(slot)/uint32(d.life.shape.Stripes()) + wire.FirstSeq
	}
	switch d.life.options.fault {
	case anySums:
		d.aimAtNewest(payload, slot)
	case takesTwice:
		if d.had[seq] {
			d.aimAtNewest(payload, d.last)
		}
		d.had[seq] = true
	}
}

// aimAtNewest makes sums those of the newest contribution to a group.
func (d *deceived) aimAtNewest(payload []byte, slot uint16) {
	payload[1] |= byte(wire.FlagAll)
	wire.ToAll(payload, d.roundOf(slot))
	for i := range d.life.shape.Stripes() {
		for lane := range wire.Lanes {
			wire.StripeAt(payload, i).SetSlot(lane, slot+uint16(i))
		}
	}
}

func (d *deceived) getConfirmation(h wire.Header, payload []byte) {
	whole := h.Flags&wire.FlagCover == 0
	switch d.life.options.fault {
	case anyConfirmation:
		if whole {
			r, _ := wire.ParseTaken(payload)
			r.Round = d.roundOf(r.First)
			r.Put(payload)
			wire.ToAll(payload, r.Round)
		}
	case startsEarly:
		for slot, seq := range d.newest {
			if !whole && seq == h.Seq {
				payload[1] = byte(wire.FlagTaken)
				wire.TakenReport{First: slot, Round: d.roundOf(slot)}.Put(payload)
			}
		}
	}
}
