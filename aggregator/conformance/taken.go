// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// heard is a group of a job in mode acked, as the last answer to all has shown it.
type heard struct {
	round    uint32
	complete bool // its result was sent
}

// isTaking decides whether the next frame for a group of a job in mode acked is a TAKEN.
func (g *Generator) isTaking(job, group int) bool {
	if g.heard[job][group].complete {
		return !g.oneIn(4)
	}
	return g.oneIn(8)
}

// taken returns a TAKEN payload, most often for the round of its group.
func (g *Generator) taken(f flow, seq uint32, group int) []byte {
	job := g.jobs[f.job]
	r := wire.TakenReport{First: uint16(group * job.MaxStripes), Round: g.heard[f.job][group].round}
	if g.oneIn(6) {
		r.Round += g.rng.Uint32N(5) - 2
	}
	return wire.PutTaken(make([]byte, wire.TakenLen), g.header(f, seq), r)
}

func isTaken(payload []byte) bool {
	return len(payload) == wire.TakenLen && wire.Type(payload[0]&15) == wire.TypeTaken
}

// spoilTaken spoils the body of a TAKEN payload.
func (g *Generator) spoilTaken(p []byte) []byte {
	job := g.jobs[g.rng.IntN(len(g.jobs))]
	first := p[wire.HeaderLen:]
	switch g.rng.IntN(6) {
	case 0: // around the last slot of each job
		binary.BigEndian.PutUint16(first, uint16(g.rng.IntN(job.Slots/wire.Lanes+2)))
	case 1:
		binary.BigEndian.PutUint16(first, uint16(g.rng.Uint32N(65536)))
	case 2:
		first[2+g.rng.IntN(2)] = byte(g.rng.Uint32()) // ignored
	case 3:
		binary.BigEndian.PutUint32(first[4:], g.rng.Uint32())
	case 4:
		p = append(p, 0)
	case 5:
		p = p[:g.rng.IntN(len(p))]
	}
	return p
}

// Hear tells the generator of the answer to its last frame, which is empty if there is none. Only
// answers to all senders matter.
func (g *Generator) Hear(answer []byte) {
	p, err := wire.ParseFrame(answer, 0)
	if err != nil {
		return
	}
	h, err := wire.ParseHeader(p.Payload)
	if err != nil || h.Type != wire.TypeAck || h.Flags&(wire.FlagAll|wire.FlagScale) != wire.FlagAll {
		return
	}
	k := slices.IndexFunc(g.jobs, func(j aggregator.JobConfig) bool { return j.ID == h.Job && j.Mode == aggregator.Acked })
	if k < 0 {
		return
	}
	most := g.jobs[k].MaxStripes
	if h.Flags&wire.FlagSum != 0 {
		g.heard[k][int(wire.StripeAt(p.Payload, 0).Slot(0))/most] = heard{round: h.Seq, complete: true}
	} else if r, err := wire.ParseTaken(p.Payload); err == nil {
		g.heard[k][int(r.First)/most] = heard{round: r.Round + 1}
	}
}
