// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
)

// harvesting is how the server harvests from the aggregator of its job, and what it does without one.
type harvesting struct {
	*control.Harvester
	lost   chan error    // holds why the aggregator is lost
	fenced chan struct{} // closed when the store takes no more harvests
	ctx    context.Context
	end    context.CancelCauseFunc
}

// harvestInStep is the longest time for which hot frames of a synchronous step stay at the aggregator:
// workers keep them until then, and wait when they have no more room.
const harvestInStep = 100 * time.Millisecond

// keepsLogs reports whether workers keep what the aggregator acknowledges, so that the job can go on
// without it.
func (s *server) keepsLogs() bool {
	return s.job != nil && s.job.Marks && s.env.Config.Job.ReplayMiB > 0
}

// noteLost notes that the aggregator has ended the job, or is out of reach.
func (h *harvesting) noteLost(err error) {
	select {
	case h.lost <- err:
	default: // it is known
	}
}

// runHarvests receives harvests until ctx ends, or the aggregator is lost.
func (s *server) runHarvests(cancel context.CancelCauseFunc) {
	h := s.harvests
	err := h.Run(h.ctx)
	switch _, refused := status.FromError(err); {
	case s.isFenced(), errors.Is(err, ps.ErrFenced): // one that was on its way
	case refused && h.ctx.Err() == nil:
		h.noteLost(s.job.Lost("harvest", err))
	default: // its harvests cannot be applied, or the server ends
		cancel(s.job.Lost("harvest", err))
	}
}

// harvestSteps harvests in the middle of synchronous steps.
func (s *server) harvestSteps() {
	for tick := time.Tick(harvestInStep); ; {
		select {
		case <-tick:
		case <-s.harvests.ctx.Done():
			return
		}
		if s.harvests.Now(s.harvests.ctx) != nil {
			return // runHarvests has the reason
		}
	}
}

// watchAggregator makes the job go on without its aggregator when that is lost, or ends the server.
func (s *server) watchAggregator(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
	case err := <-s.harvests.lost:
		if errors.Is(err, control.ErrRemoved) || !s.service.MayFence() {
			cancel(err)
			return
		}
		if failed := s.fence(ctx); failed != nil {
			cancel(failed)
			return
		}
		s.env.Log.Warn("the job goes on without its aggregator: workers send hot rows to the server", "job", s.job.ID,
			"reason", err)
		if !s.env.Config.Job.Sync {
			s.commitRegularly(ctx)
		}
	}
}

// fence ends the job's part at its aggregator. All of it is one call in the store's goroutine: what is
// applied, and who has arrived, is the same for the store, the workers and the ends of steps.
func (s *server) fence(ctx context.Context) error {
	err := s.loop.Do(ctx, func() {
		s.store.BeginGeneration(0)
		s.store.TakeAlways(s.keys) // of frames that were acknowledged
		s.progress.endGeneration(s.job.Instance)
		s.loop.RefuseSteps(true)
		s.service.Fence()
		if s.env.Machine.Fenced != nil {
			s.env.Machine.Fenced()
		}
	})
	if err == nil {
		close(s.harvests.fenced)
		s.harvests.end(control.ErrFenced)
	}
	return err
}

// isFenced reports whether the job goes on without its aggregator.
func (s *server) isFenced() bool {
	if s.harvests == nil {
		return false
	}
	select {
	case <-s.harvests.fenced:
		return true
	default:
		return false
	}
}

// harvestNow makes the server apply everything that the aggregator has acknowledged, if it has one. It
// fails with [control.ErrFenced] in the context of a commit that the loss of the aggregator stops.
func (s *server) harvestNow(ctx context.Context) error {
	if s.isFenced() {
		return s.commitAlone(ctx)
	}
	err := s.harvests.Now(ctx)
	switch {
	case errors.Is(context.Cause(ctx), control.ErrFenced):
		return control.ErrFenced
	case err == nil || ctx.Err() != nil || !s.keepsLogs():
		return err
	}
	select { // the server goes on or ends
	case <-s.harvests.fenced:
		return s.commitAlone(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// commitAlone ends an asynchronous step without an aggregator.
func (s *server) commitAlone(ctx context.Context) error {
	if s.env.Config.Job.Sync {
		return nil
	}
	return s.loop.Do(ctx, func() {
		s.commitStep()
		s.progress.settleReports()
	})
}

// commitRegularly ends asynchronous steps, as harvests would, until ctx ends.
func (s *server) commitRegularly(ctx context.Context) {
	for tick := time.Tick(s.env.Config.Job.Harvest); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if s.commitAlone(ctx) != nil {
			return // the loop has ended, which cancels ctx
		}
	}
}
