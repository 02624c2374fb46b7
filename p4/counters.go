// SPDX-License-Identifier: Apache-2.0

package p4

import (
	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// Indices of the program's counters: see program/statistics.p4.
const (
	eventPassed = iota
	eventForwarded
	eventTruncated
	eventBadChecksum
	eventPartialChecksum
	eventShort
	eventUnexpected

	eventRefused = 16 // plus the code of the ERROR

	eventDuplicate     = 0
	eventSenderRefused = 1

	jobStride    = 32
	bankStride   = 32
	senderStride = 2
	pairStride   = 32 // by pairs of a frame, or by its saturated sums
)

// cells are consecutive counters of one array.
type cells struct {
	counter  string
	first, n int
}

// Counters of a job, of one of its banks and of a sender.
func jobEvents(job uint16) cells {
	return cells{counterJobEvents, int(job) * jobStride, jobStride}
}

func jobSaturated(job uint16) cells {
	return cells{counterSaturated, int(job) * pairStride, wire.Lanes + 1}
}

func bankApplied(job uint16, bank int) cells {
	return cells{counterApplied, int(job)*2*bankStride + bank*bankStride, wire.Lanes + 1}
}

func senderEvents(index int) cells {
	return cells{counterSenderEvents, index * senderStride, senderStride}
}

func senderApplied(index int) cells {
	return cells{counterSenderApplied, index * pairStride, wire.Lanes + 1}
}

// counts are the values of several cells, one after the other.
type counts []uint64

func (p *Plane) count(what string, all ...cells) (counts, error) {
	var entities []*rt.Entity
	place := make(map[[2]uint32]int)
	for _, c := range all {
		id := p.names.counters[c.counter].id
		for i := range c.n {
			place[[2]uint32{id, uint32(c.first + i)}] = len(entities)
			entities = append(entities, &rt.Entity{Entity: &rt.Entity_CounterEntry{CounterEntry: &rt.CounterEntry{
				CounterId: id, Index: &rt.Index{Index: int64(c.first + i)},
			}}})
		}
	}
	got, err := p.client.readEntities(what, entities...)
	if err != nil {
		return nil, err
	}
	n := make(counts, len(entities))
	for _, e := range got {
		c := e.GetCounterEntry()
		if i, ok := place[[2]uint32{c.GetCounterId(), uint32(c.GetIndex().GetIndex())}]; ok {
			n[i] = uint64(c.GetData().GetPacketCount())
		}
	}
	return n, nil
}

// countsSince returns the counts since an earlier reading.
func (c counts) countsSince(before counts) counts {
	d := make(counts, len(c))
	for i := range c {
		d[i] = c[i] - before[i]
	}
	return d
}

// frameCounts returns the numbers of frames and of their pairs, from cells by pairs.
func (c counts) frameCounts() (frames, pairs uint64) {
	for n, k := range c[:wire.Lanes+1] {
		frames += k
		pairs += uint64(n) * k
	}
	return frames, pairs
}

// refusalCounts returns the ERROR replies of event cells.
func (c counts) refusalCounts() (r aggregator.Refusals) {
	copy(r[:], c[eventRefused:min(len(c), eventRefused+len(r))])
	return r
}

// Counters implements [aggregator.Plane].
func (p *Plane) Counters() (aggregator.Counters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return aggregator.Counters{}, aggregator.ErrClosed
	}
	n, err := p.count("counters", cells{counterEvents, 0, eventRefused + len(aggregator.Refusals{})})
	if err != nil {
		return aggregator.Counters{}, err
	}
	return aggregator.Counters{
		Passed: n[eventPassed], Forwarded: n[eventForwarded],
		Truncated: n[eventTruncated], BadChecksum: n[eventBadChecksum],
		PartialChecksum: n[eventPartialChecksum], Short: n[eventShort], Unexpected: n[eventUnexpected],
		Refused: n.refusalCounts(),
	}, nil
}

// JobCounters implements [aggregator.Plane].
func (p *Plane) JobCounters(id uint16) (aggregator.JobCounters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.job(id)
	if err != nil {
		return aggregator.JobCounters{}, err
	}
	n, err := p.count("counters of a job", jobCells(id)...)
	if err != nil {
		return aggregator.JobCounters{}, err
	}
	n = n.countsSince(j.began)
	var c aggregator.JobCounters
	c.Duplicates, c.Refused = n[eventDuplicate], n.refusalCounts()
	n = n[jobStride:]
	for range 2 { // banks
		frames, pairs := n.frameCounts()
		c.Applied += frames
		c.Pairs += pairs
		n = n[wire.Lanes+1:]
	}
	_, c.Saturated = n.frameCounts()
	n = n[wire.Lanes+1:]
	c.Rounds, c.Scales = n[0], n[1]
	return c, nil
}

// JobTimes implements [aggregator.Plane]: a P4 switch measures no times.
func (p *Plane) JobTimes(id uint16) (telemetry.Distribution, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.job(id)
	return telemetry.Distribution{}, err
}

func jobCells(id uint16) []cells {
	return []cells{jobEvents(id), bankApplied(id, 0), bankApplied(id, 1), jobSaturated(id),
		{counterCompleted, 2 * int(id), 2}}
}

// SenderCounters implements [aggregator.Plane].
func (p *Plane) SenderCounters(id, sender uint16) (aggregator.SenderCounters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, s, err := p.sender(id, sender)
	if err != nil {
		return aggregator.SenderCounters{}, err
	}
	n, err := p.count("counters of a sender", senderEvents(s.index), senderApplied(s.index))
	if err != nil {
		return aggregator.SenderCounters{}, err
	}
	n = n.countsSince(s.began)
	c := aggregator.SenderCounters{Duplicates: n[eventDuplicate], Refused: n[eventSenderRefused]}
	c.Applied, c.Pairs = n[senderStride:].frameCounts()
	return c, nil
}
