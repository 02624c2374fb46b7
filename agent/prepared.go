// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/transport"
)

// preparedCharge is the charge for a prepared batch in addition to its keys, so that none is free.
const preparedCharge = 512

// prepared is a batch of keys that a client has prepared.
type prepared struct {
	keys   []uint64
	places *transport.Prepared
	charge uint64
}

// prepareBatch looks up keys and answers with a handle.
func (s *session) prepareBatch(w *work) error {
	n, dim := uint64(len(w.keys)), uint64(s.job.cfg.Dim)
	b := &prepared{charge: preparedCharge + 16*n + 8*n*dim}
	s.mu.Lock()
	fits := s.charged+b.charge <= s.job.cfg.Limits.Prepared
	if fits {
		s.charged += b.charge
	}
	s.mu.Unlock()
	if !fits {
		return fmt.Errorf("%w: prepared batches", agentproto.NoMemory)
	}
	places, err := s.job.cfg.Worker.Prepare(w.keys)
	if err != nil { // the worker has ended, and with it the session
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.keys, b.places = slices.Clone(w.keys), places
	s.handles++
	s.prepared[s.handles] = b
	w.c.Detail = s.handles
	return nil
}

// findBatch returns a prepared batch of n keys, or nil.
func (s *session) findBatch(handle uint64, n uint32) *prepared {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.prepared[handle]
	if b == nil || len(b.keys) != int(n) {
		return nil
	}
	return b
}

// releaseBatch releases a prepared batch.
func (s *session) releaseBatch(handle uint64) agentproto.Code {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.prepared[handle]
	if b == nil {
		return agentproto.NoBatch
	}
	delete(s.prepared, handle)
	s.charged -= b.charge
	return agentproto.OK
}
