//go:build linux

package bpf

import (
	"fmt"

	"github.com/libra-ina/libra/aggregator"
)

// Counters implements [aggregator.Plane].
func (a *Aggregator) Counters() (aggregator.Counters, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.Counters{}, aggregator.ErrClosed
	}
	c, err := a.sum(aggregator.MaxJobs)
	if err != nil {
		return aggregator.Counters{}, err
	}
	return aggregator.Counters{
		Passed:      c.Passed,
		Forwarded:   c.Forwarded,
		Truncated:   c.Truncated,
		BadChecksum: c.BadChecksum,
		Short:       c.TooShort,
		Unexpected:  c.Unexpected,
		Refused:     refusals(&c),
		Unanswered:  c.Unanswered,
	}, nil
}

// JobCounters implements [aggregator.Plane].
func (a *Aggregator) JobCounters(id uint16) (aggregator.JobCounters, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.job(id); err != nil {
		return aggregator.JobCounters{}, err
	}
	c, err := a.sum(uint32(id))
	if err != nil {
		return aggregator.JobCounters{}, err
	}
	return aggregator.JobCounters{
		Applied:    c.Applied,
		Pairs:      c.Pairs,
		Duplicates: c.Duplicates,
		Refused:    refusals(&c),
		Raced:      c.Raced,
	}, nil
}

// SenderCounters implements [aggregator.Plane].
func (a *Aggregator) SenderCounters(id, sender uint16) (aggregator.SenderCounters, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, err := a.job(id)
	if err != nil {
		return aggregator.SenderCounters{}, err
	}
	if _, ok := j.senders[sender]; !ok {
		return aggregator.SenderCounters{}, fmt.Errorf("job %d: sender %d: %w", id, sender, aggregator.ErrNoSender)
	}
	var s aggregateSender
	if err := a.objects.Senders.Lookup(aggregateSenderKey{Job: id, Sender: sender}, &s); err != nil {
		return aggregator.SenderCounters{}, fmt.Errorf("bpf: job %d: sender %d: read counters: %w", id, sender, err)
	}
	return aggregator.SenderCounters{
		Applied:    s.Applied,
		Pairs:      s.Pairs,
		Duplicates: s.Duplicates,
		Refused:    s.Refused,
	}, nil
}

// sum adds up an entry of the counters over all CPUs.
func (a *Aggregator) sum(entry uint32) (aggregateCounters, error) {
	var perCPU []aggregateCounters
	if err := a.objects.Counts.Lookup(entry, &perCPU); err != nil {
		return aggregateCounters{}, fmt.Errorf("bpf: read counters: %w", err)
	}
	var t aggregateCounters
	for i := range perCPU {
		c := &perCPU[i]
		t.Passed += c.Passed
		t.Forwarded += c.Forwarded
		t.Truncated += c.Truncated
		t.BadChecksum += c.BadChecksum
		t.TooShort += c.TooShort
		t.Unexpected += c.Unexpected
		t.Unanswered += c.Unanswered
		t.Applied += c.Applied
		t.Pairs += c.Pairs
		t.Duplicates += c.Duplicates
		t.Raced += c.Raced
		t.UndoOverflow += c.UndoOverflow
		for k := range c.Refused {
			t.Refused[k] += c.Refused[k]
		}
	}
	return t, nil
}

func refusals(c *aggregateCounters) (r aggregator.Refusals) {
	copy(r[:], c.Refused[:])
	return r
}
