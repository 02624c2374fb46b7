// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A worker that the aggregator alone has withdrawn, as its daemon was suspended when the worker
// tried to come back, joins again. The server takes it for one that is lost, and rewinds: the job
// goes on.
func TestWithdrawnByTheAggregatorAlone(t *testing.T) {
	t.Parallel() // it waits for the grace period
	rewinds := 0
	var s *services
	s = startServices(t, func(c *ParameterServerConfig) {
		c.KeepLog, c.Grace = true, DefaultGrace
		c.FirstStep = func(uint16) uint64 { return 7 }
		c.Rewind = func(context.Context) error {
			rewinds++
			s.service.Rewind()
			return nil
		}
	})
	lost := make(chan error, 1)
	s.join.KeepsLog, s.join.Rewinds, s.join.Lost = true, true, func(err error) { lost <- err }
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	j := s.daemon.jobs[5]
	j.roster.mu.Lock()
	one := j.roster.members[1]
	one.stopPresence(status.Error(codes.Unavailable, "its connection breaks"))
	j.roster.dropAdmission(one, vanished)
	j.roster.mu.Unlock()
	if err := <-lost; !errors.Is(err, ErrRewound) || !contains(err, "withdrew this worker") {
		t.Errorf("its admission ends because of %v", err)
	}
	m.LeaveAs(Departure{})
	again, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Leave()
	if err := s.service.barrier.failureOf(); err != nil || rewinds != 1 || again.FirstStep != 7 || !again.NoAggregator {
		t.Errorf("%v; %d rewinds; step %d, without an aggregator: %v", err, rewinds, again.FirstStep, again.NoAggregator)
	}
}
