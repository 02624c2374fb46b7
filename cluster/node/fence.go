// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
)

// harvesting is a generation: how the server harvests from an aggregator of its job, and what it
// does without.
type harvesting struct {
	at      int                          // the aggregator, by its index
	job     *control.Owned               // of the first share at the beginning
	open    atomic.Pointer[[]*openShare] // the others, too
	conn    *grpc.ClientConn             // to that aggregator
	lost    chan error                   // holds why the aggregator is lost
	pressed chan struct{}                // holds a token when it drops too many frames
	used    []uint32                     // epochs that its admissions do not get
	fenced  chan struct{}                // closed when the store takes no more harvests
	ctx     context.Context
	end     context.CancelCauseFunc
}

func newHarvesting(at int) *harvesting {
	return &harvesting{at: at, lost: make(chan error, 1), pressed: make(chan struct{}, 1), fenced: make(chan struct{})}
}

// harvestInStep is the longest time for which hot frames of a synchronous step stay at the
// aggregator: workers keep them until then, and wait when they have no more room.
const harvestInStep = 100 * time.Millisecond

// keepsLogs reports whether workers keep what the aggregator acknowledges, so that the job can go
// on without it.
func (s *server) keepsLogs() bool {
	return s.job != nil && s.job.Marks && keepsLogs(s.env.Config)
}

// noteLost notes that the aggregator has ended the job, or is out of reach.
func (h *harvesting) noteLost(err error) {
	select {
	case h.lost <- err:
	default: // it is known
	}
}

// runGeneration harvests from a generation.
func (s *server) runGeneration(cancel context.CancelCauseFunc, h *harvesting) {
	for _, one := range harvested(h.listShares()) { // its own
		go s.runHarvests(cancel, h, one)
	}
	switch {
	case s.env.Config.Job.Sync && s.keepsLogs():
		go s.harvestSteps(h)
	case s.timed != nil:
		go s.harvestByTime(h)
	}
}

// runHarvests receives the harvests of a share until the generation or the share ends, or its
// aggregator is lost.
func (s *server) runHarvests(cancel context.CancelCauseFunc, h *harvesting, one *openShare) {
	err := one.Run(one.ctx)
	lost := one.withSwitchName(one.job.Lost("harvest", err))
	if errors.Is(lost, control.ErrDiverged) {
		s.keepGood("the sums of switches became too large together", "lower model.learning_rate")
	}
	switch _, refused := status.FromError(err); {
	case h.isFenced(), errors.Is(err, ps.ErrFenced): // one that was on its way
	case one.ctx.Err() != nil && h.ctx.Err() == nil: // the share is closed
	case refused && h.ctx.Err() == nil:
		h.noteLost(lost)
	default: // its harvests cannot be applied, or the server ends
		cancel(lost)
	}
}

// harvestSteps harvests in the middle of synchronous steps.
func (s *server) harvestSteps(h *harvesting) {
	for tick := time.Tick(harvestInStep); ; {
		select {
		case <-tick:
		case <-h.ctx.Done():
			return
		}
		if h.takeAll(h.ctx, s.env.Machine.turn) != nil {
			return // runHarvests has the reason
		}
	}
}

// watchAggregator makes the job go on without its aggregator when that is lost or drained, and then
// at another one, or ends the server.
func (s *server) watchAggregator(ctx context.Context, cancel context.CancelCauseFunc) {
	for goesOn := true; goesOn; {
		h := s.generation.Load()
		select {
		case <-ctx.Done():
			return
		case reason := <-h.lost:
			goesOn = s.leaveAggregator(ctx, cancel, h, nil, reason)
		case m := <-s.moves:
			goesOn = s.leaveAggregator(ctx, cancel, h, m, errors.New(m.why))
		case <-h.fenced: // by a rewind
			goesOn = s.reopenGeneration(ctx, cancel, h)
		case <-h.pressed:
			m := newMove(nil, "its aggregator drops frames")
			m.stays = true
			goesOn = s.leaveAggregator(ctx, cancel, h, m, errors.New(m.why))
		}
	}
}

// leaveAggregator makes the job leave the aggregator of a generation: because of a move or, with
// nil, as it is lost. It reports whether there is an aggregator to watch; otherwise the server
// ends, or goes on without.
func (s *server) leaveAggregator(ctx context.Context, cancel context.CancelCauseFunc, h *harvesting, m *move,
	reason error) bool {
	if errors.Is(reason, control.ErrRemoved) {
		cancel(reason)
		return false
	}
	var next *harvesting
	var rewound bool
	var failed error
	if m != nil {
		next, failed = s.prepareGeneration(ctx, h, m)
	}
	if failed == nil {
		rewound, failed = s.fenceGeneration(ctx)
	}
	if failed != nil && next != nil {
		s.discardGeneration(next)
	}
	switch {
	case failed == nil:
	case m != nil && ctx.Err() == nil:
		s.env.Log.Warn("the job does not leave its aggregator", "job", s.job.ID, "because", m.why, "error", failed)
		m.finishMove(moved{nil, failed})
		return true
	case errors.Is(failed, control.ErrNoLog) && errors.Is(reason, control.ErrSilent):
		s.env.Log.Warn("the job waits for its aggregator, which is silent", "job", s.job.ID, "reason", reason,
			"error", failed)
		return true
	case errors.Is(failed, control.ErrNoLog):
		cancel(reason)
		return false
	default:
		cancel(failed)
		return false
	}
	if rewound && m == nil && len(s.env.Config.Standbys) == 0 { // one that has only forgotten the job takes it again
		return s.reopenGeneration(ctx, cancel, h)
	}
	s.noteLeft(h, m)
	if next != nil {
		s.env.Log.Info("the job moves to another aggregator", "job", s.job.ID, "because", m.why)
	} else {
		s.env.Log.Warn("the job goes on without its aggregator: workers send hot rows to the server", "job", s.job.ID,
			"reason", reason)
	}
	if next = s.goWithout(ctx, h, next, m); next == nil {
		return false
	}
	if err := s.beginGeneration(ctx, cancel, next); err != nil {
		s.discardGeneration(next)
		return false // the loop has ended, which cancels ctx
	}
	clear(s.drained)
	m.tellMoved(h.at, &next.at)
	return true
}

// goWithout makes the job go on without its aggregator, until there is another one, which may be
// prepared, or ctx has ended: then it returns nil. m is the move that made it leave, or nil.
func (s *server) goWithout(ctx context.Context, left, prepared *harvesting, m *move) *harvesting {
	commits, end := context.WithCancel(ctx)
	defer end()
	if !s.env.Config.Job.Sync {
		s.ends.Go(func() { s.commitRegularly(commits) })
	}
	if m != nil { // the workers leave it before it is told, as it is alive
		var err error
		if prepared == nil {
			err = s.awaitSettled(ctx, nil)
		} else {
			prepared, err = s.settleMove(ctx, prepared, m)
		}
		s.ends.Go(func() { s.discardGeneration(left) })
		switch {
		case err == nil && prepared != nil:
			return prepared
		case err == nil:
			m.tellMoved(left.at, nil)
		}
	} else if len(s.env.Config.Standbys) > 0 {
		s.ends.Go(func() { s.discardGeneration(left) })
	}
	if len(s.env.Config.Standbys) == 0 {
		<-ctx.Done()
		return nil
	}
	return s.moveOn(ctx, left.at, m)
}

// settleMove is settleFor the generation to which a move goes. If its aggregator does not take the
// job any more, the answer to the move says so.
func (s *server) settleMove(ctx context.Context, prepared *harvesting, m *move) (*harvesting, error) {
	at := prepared.at
	next, err := s.settleFor(ctx, prepared)
	if err != nil && ctx.Err() == nil {
		err = s.refusalAt(at, err)
		m.reason = errors.Join(m.reason, err)
		s.env.Log.Warn("the job does not go where it was to go: the server asks the other aggregators", "job",
			s.job.ID, "error", err)
	}
	return next, err
}

// fenceGeneration ends the job's part at its aggregator. All of it is one call in the store's
// goroutine: what is applied, and who has arrived, is the same for the store, the workers and the
// ends of steps. rewound means that a rewind was first.
func (s *server) fenceGeneration(ctx context.Context) (rewound bool, err error) {
	var refused error
	err = s.loop.Do(ctx, func() {
		h := s.generation.Load()
		if rewound = h.isFenced(); rewound {
			return
		}
		if refused = s.service.Fence(); refused != nil {
			return
		}
		s.endGeneration(h)
		s.loop.RefuseSteps(true)
		if s.env.Machine.Fenced != nil {
			s.env.Machine.Fenced()
		}
	})
	return rewound, errors.Join(err, refused)
}

// endGeneration makes the store take no more harvests of a generation. Only the loop's goroutine
// may call it.
func (s *server) endGeneration(h *harvesting) {
	s.store.BeginGeneration()
	s.store.TakeAlways(s.keys) // of frames that were acknowledged, and while there is no aggregator
	s.progress.endGeneration(h.job.Instance)
	close(h.fenced)
	h.end(control.ErrFenced)
}

// isFenced reports whether a generation has ended.
func (h *harvesting) isFenced() bool {
	select {
	case <-h.fenced:
		return true
	default:
		return false
	}
}

// harvestNow makes the server apply everything that the aggregator has acknowledged, if it has one.
// It fails with [control.ErrFenced] in the context of a commit that the loss of the aggregator
// stops.
func (s *server) harvestNow(ctx context.Context) error {
	for {
		h := s.generation.Load()
		if h == nil || h.isFenced() {
			if alone, err := s.commitAlone(ctx); alone || err != nil {
				return err
			}
			continue // it has an aggregator again
		}
		reports := s.progress.takeReports()
		err := h.takeAll(ctx, s.env.Machine.turn)
		if err == nil && s.timed != nil {
			err = s.loop.Do(ctx, func() { s.endTimedStep(reports) })
		}
		switch {
		case errors.Is(context.Cause(ctx), control.ErrFenced):
			return control.ErrFenced
		case err == nil || ctx.Err() != nil || !s.keepsLogs():
			return err
		}
		select { // the server goes on or ends
		case <-h.fenced:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// commitAlone ends an asynchronous step, if the job has no aggregator: otherwise what was reported
// may be at that.
func (s *server) commitAlone(ctx context.Context) (alone bool, err error) {
	if s.env.Config.Job.Sync {
		return true, nil
	}
	err = s.loop.Do(ctx, func() {
		if h := s.generation.Load(); h == nil || !s.takesHarvests(h) {
			alone = true
			s.commitStep()
			s.progress.settleReports()
		}
	})
	return alone, err
}

// takesHarvests reports whether the store takes harvests of a generation. Only the loop's goroutine
// may call it.
func (s *server) takesHarvests(h *harvesting) bool {
	return slices.Contains(s.store.Generation(), h.job.Instance)
}

// commitRegularly ends asynchronous steps, as harvests would, until ctx ends.
func (s *server) commitRegularly(ctx context.Context) {
	for tick := time.Tick(s.env.Config.Job.Harvest); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if _, err := s.commitAlone(ctx); err != nil {
			return // the loop has ended, which cancels ctx
		}
	}
}
