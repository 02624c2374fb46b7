// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/wire"
)

// How a job with job.sync goes on when a worker is lost: see control/rewind.go.

// rewind drops the open step and ends the generation: the store takes nothing of both any more.
func (s *server) rewind(ctx context.Context) error {
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

// reopen opens the generation after a rewind, if possible at the same aggregator: its banks have parts of the step
// that was dropped. It reports whether there is one; otherwise ctx has ended.
func (s *server) reopen(ctx context.Context, cancel context.CancelCauseFunc, left *harvesting) bool {
	s.discard(left)
	next := s.moveOn(ctx, left.at+len(s.env.Config.Aggregators())-1)
	if next == nil {
		return false
	}
	if err := s.begin(ctx, cancel, next); err != nil {
		s.discard(next)
		return false // the loop has ended, which cancels ctx
	}
	return true
}

// verdict returns why a worker's call has failed. What ends all admissions is told on another connection than the
// server's refusals of frames of an ended one, and may come later.
func verdict(ctx context.Context, err error) error {
	var refused wire.Refusal
	if errors.As(err, &refused) && (refused.Code == wire.CodeUnknownSender || refused.Code == wire.CodeWrongEpoch) {
		select {
		case <-ctx.Done():
		case <-time.After(control.DefaultGrace):
		}
	}
	return reason(ctx, err)
}
