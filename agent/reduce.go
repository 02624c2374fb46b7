// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"sync/atomic"

	"github.com/libra-ina/libra/agent/agentproto"
)

// Sums are the total of all workers' pushes in a step: keys in ascending order, and Dim floats
// for each.
type Sums struct {
	Keys []uint64
	Rows []float32
}

// Arrival is a host's report at the end of a step.
type Arrival struct {
	// Refused means that gradients of this host were refused, so that the step has to be dropped.
	Refused *DroppedError
	// HotSent and HotAnswered are from [transport.Worker.HotFrames]: a step in which no host has sent
	// frames to the aggregator needs no harvest.
	HotSent, HotAnswered uint32
}

// DroppedError means that gradients of a step were refused on a host, that a party there had pushed
// in it and ended before its end, or that a sum is too large for a float32, so that the step has no
// effect.
type DroppedError struct {
	Key      uint64 // of the gradient
	KeyKnown bool
	Sum      bool // the sum of the key is too large
}

func (e *DroppedError) Error() string {
	if e.Sum {
		return fmt.Sprintf("the step was dropped for all: the sum of key %d is too large for a float32: "+
			"send smaller numbers", e.Key)
	}
	if !e.KeyKnown {
		return agentproto.Dropped.Error()
	}
	return fmt.Sprintf("%v: key %d", agentproto.Dropped, e.Key)
}

// refusedBefore returns the first failed push since the last FLUSH, or REDUCE of a due step, and
// resets it.
func (s *session) refusedBefore() *DroppedError {
	first := s.failed
	s.failed = agentproto.Completion{}
	if first.Status == agentproto.OK {
		return nil
	}
	return &DroppedError{Key: first.Key, KeyKnown: first.KeyKnown}
}

// stepSums are the sums of a step. Without users, its memory is reused for a later step.
type stepSums struct {
	Sums
	users atomic.Int32 // sessions that keep them, and copies in progress
}

// sumsPair are the sums of the last two steps or harvests, or nil.
type sumsPair [2]*stepSums

// unusedSums returns sums without users. Two are enough: clients that take each step's sums keep
// those of one step until the next ones arrive.
func (p *sumsPair) unusedSums() *stepSums {
	for _, sums := range p {
		if sums != nil && sums.users.Load() == 0 {
			return sums
		}
	}
	p[0], p[1] = p[1], new(stepSums)
	return p[1]
}

func (s *session) keepSums(sums *stepSums) {
	sums.users.Add(1)
	s.mu.Lock()
	before := s.sums
	s.sums = sums
	s.mu.Unlock()
	if before != nil {
		before.users.Add(-1)
	}
}

func (s *session) copySums(keys []uint64, rows []float32, first uint64) error {
	s.mu.Lock()
	sums := s.sums
	if sums == nil {
		s.mu.Unlock()
		return agentproto.NoSums
	}
	sums.users.Add(1)
	s.mu.Unlock()
	defer sums.users.Add(-1)
	n, dim := uint64(len(keys)), s.job.cfg.Dim
	if first > uint64(len(sums.Keys)) || n > uint64(len(sums.Keys))-first {
		return agentproto.NoSums
	}
	copy(keys, sums.Keys[first:])
	copy(rows, sums.Rows[int(first)*dim:])
	return nil
}
