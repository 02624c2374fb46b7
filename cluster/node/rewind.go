// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// How a job with job.sync goes on when a worker or the server is lost: see control/rewind.go.

// admissions is what a worker keeps from one of its admissions to the next.
type admissions struct {
	training string // identity of that in which it takes part; "": it has had no admission
	goesOn   bool   // the job goes on after the death of its server, as far as the worker knows
}

// newAdmissions is for a worker that has had none.
func newAdmissions(c *cluster.Config) *admissions {
	return &admissions{goesOn: c.Job.Sync && len(c.AllServers()) == 1}
}

// hasJoined reports whether the worker had an admission before. A nil a means that it joins once.
func (a *admissions) hasJoined() bool { return a != nil && a.training != "" }

// noteAdmission notes an admission.
func (a *admissions) noteAdmission(m *control.Membership) {
	a.training, a.goesOn = m.Training, a.goesOn && m.KeepsLog
}

// joinsAfter reports whether the worker joins again after an admission, or an attempt, that has
// ended because of why.
func (a *admissions) joinsAfter(why error) bool {
	return errors.Is(why, control.ErrRewound) || a.goesOn && errors.Is(why, access.ErrBroken)
}

// checkServer refuses a server that has come back with the steps of another training. One that
// begins anew, as it had written no checkpoint, trains what was trained.
func (a *admissions) checkServer(trainings []string, steps []uint64) error {
	if now := trainings[0]; a.training != "" && now != a.training && steps[0] > 0 {
		return fmt.Errorf("the server has come back with the checkpoint of another training (%s, not %s): start this worker again, if that is on purpose",
			now, a.training)
	}
	return nil
}

// rewindStep drops the open step and ends the generation: the store takes nothing of both any more.
func (s *server) rewindStep(ctx context.Context) error {
	err := s.loop.Do(ctx, func() {
		if s.env.Machine.Rewind != nil {
			s.env.Machine.Rewind(s.store.Drop)
		} else {
			s.store.Drop()
		}
		s.service.Rewind()
		if h := s.generation.Load(); !h.isFenced() {
			s.endGeneration(h)
		}
	})
	s.saveSoon()
	return err
}

// reopenGeneration opens the generation after a rewind, if possible at the same aggregator: its
// banks have parts of the step that was dropped. It reports whether there is one; otherwise ctx has
// ended.
func (s *server) reopenGeneration(ctx context.Context, cancel context.CancelCauseFunc, left *harvesting) bool {
	s.discardGeneration(left)
	next := s.moveOn(ctx, left.at+len(s.env.Config.Aggregators())-1, nil)
	if next == nil {
		return false
	}
	if err := s.beginGeneration(ctx, cancel, next); err != nil {
		s.discardGeneration(next)
		return false // the loop has ended, which cancels ctx
	}
	return true
}

// verdict returns why a worker's call has failed. What ends all admissions is told on another
// connection than the server's refusals of frames of an ended one, and may come later. So may the
// loss of a server that is silent, if the job goes on after that.
func verdict(ctx context.Context, err error, goesOn bool) error {
	var limit time.Duration
	var refused wire.Refusal
	var peer *transport.PeerError
	switch {
	case errors.As(err, &refused):
		if refused.Code == wire.CodeUnknownSender || refused.Code == wire.CodeWrongEpoch {
			limit = control.DefaultGrace
		}
	case goesOn && errors.As(err, new(*retransmit.SilentPeerError)) && errors.As(err, &peer) && peer.Role != "aggregator":
		limit = startLimit // in which another one may have started
	}
	select {
	case <-ctx.Done():
	case <-time.After(limit):
	}
	return reason(ctx, err)
}
