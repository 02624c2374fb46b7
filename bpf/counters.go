// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/aggregator"
)

// Counters implements [aggregator.Plane].
func (a *Aggregator) Counters() (aggregator.Counters, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.Counters{}, aggregator.ErrClosed
	}
	c, err := a.sumCounters()
	if err != nil {
		return aggregator.Counters{}, err
	}
	answers, redirects, err := a.failures.readCounts()
	if err != nil {
		return aggregator.Counters{}, err
	}
	return aggregator.Counters{
		UnsentAnswers:   answers,
		UnsentRedirects: redirects,

		Passed:      c.Passed,
		Forwarded:   c.Forwarded,
		Truncated:   c.Truncated,
		BadChecksum: c.BadChecksum,

		PartialChecksum: c.PartialChecksum,

		Short:      c.TooShort,
		Unexpected: c.Unexpected,
		Refused:    refusals(&c.Refused),
		Unanswered: c.Unanswered,

		OutOfBounds: c.OutOfBounds,
	}, nil
}

// JobCounters implements [aggregator.Plane].
func (a *Aggregator) JobCounters(id uint16) (aggregator.JobCounters, error) {
	p, err := a.placeOf(id)
	if err != nil {
		return aggregator.JobCounters{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.lockedJob(id); err != nil {
		return aggregator.JobCounters{}, err
	}
	c := &a.table.jobs[id]
	return aggregator.JobCounters{
		Applied:    atomic.LoadUint64(&c.Applied),
		Pairs:      atomic.LoadUint64(&c.Pairs),
		Duplicates: atomic.LoadUint64(&c.Duplicates),
		Rounds:     atomic.LoadUint64(&c.Rounds),
		Scales:     atomic.LoadUint64(&c.Scales),
		Saturated:  atomic.LoadUint64(&c.Saturated),
		Refused:    refusals(&c.Refused),
		Raced:      atomic.LoadUint64(&c.Raced),
		Throttled:  atomic.LoadUint64(&c.Throttled),
	}, nil
}

// SenderCounters implements [aggregator.Plane].
func (a *Aggregator) SenderCounters(id, sender uint16) (aggregator.SenderCounters, error) {
	p, err := a.placeOf(id)
	if err != nil {
		return aggregator.SenderCounters{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	j, err := p.lockedJob(id)
	if err != nil {
		return aggregator.SenderCounters{}, err
	}
	m, ok := j.senders[sender]
	if !ok {
		return aggregator.SenderCounters{}, fmt.Errorf("job %d: sender %d: %w", id, sender, aggregator.ErrNoSender)
	}
	s := &a.senders.entries[m.index]
	return aggregator.SenderCounters{
		Applied:    atomic.LoadUint64(&s.Applied),
		Pairs:      atomic.LoadUint64(&s.Pairs),
		Duplicates: atomic.LoadUint64(&s.Duplicates),
		Refused:    atomic.LoadUint64(&s.Refused),
	}, nil
}

// sumCounters adds up the counters that belong to no job over all CPUs.
func (a *Aggregator) sumCounters() (aggregateCounters, error) {
	var perCPU []aggregateCounters
	if err := a.objects.Counts.Lookup(uint32(0), &perCPU); err != nil {
		return aggregateCounters{}, fmt.Errorf("bpf: read counters: %w", err)
	}
	var t aggregateCounters
	for i := range perCPU {
		c := &perCPU[i]
		t.Passed += c.Passed
		t.Forwarded += c.Forwarded
		t.Truncated += c.Truncated
		t.BadChecksum += c.BadChecksum
		t.PartialChecksum += c.PartialChecksum
		t.TooShort += c.TooShort
		t.Unexpected += c.Unexpected
		t.Unanswered += c.Unanswered
		t.OutOfBounds += c.OutOfBounds
		for k := range c.Refused {
			t.Refused[k] += c.Refused[k]
		}
	}
	return t, nil
}

func refusals(counts *[16]uint64) (r aggregator.Refusals) {
	for code := range r {
		r[code] = atomic.LoadUint64(&counts[code])
	}
	return r
}

// RunTime returns how long the program has run on all CPUs while the kernel measured it
// (ebpf.EnableStats).
func (a *Aggregator) RunTime() (time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return 0, aggregator.ErrClosed
	}
	stats, err := a.objects.Aggregate.Stats()
	if err != nil {
		return 0, fmt.Errorf("bpf: run time of the aggregator's program: %w", err)
	}
	return stats.Runtime, nil
}
