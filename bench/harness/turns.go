// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"time"
)

// Progress is called before each measurement with the number of those that are
// done, the number of all, and a description of this one.
type Progress func(done, total int, what string)

// Steps counts the measurements of a run. Its zero value counts in silence.
type Steps struct {
	Progress    Progress // may be nil
	Done, Total int
}

// Next announces a measurement.
func (s *Steps) Next(what string) {
	if s.Progress != nil {
		s.Progress(s.Done, s.Total, what)
	}
	s.Done++
}

// Subject is one of those that take turns.
type Subject[S any] struct {
	What string // for Progress and in errors
	// Measure measures it once.
	Measure func(context.Context) (S, error)

	// Samples has one sample of each round, in order. It is empty if a
	// measurement failed: what a subject reached before that does not count.
	Samples []S
	// Err is why the subject was left out, with Turns.DropFailed.
	Err error
}

// Turns is how subjects take turns.
type Turns struct {
	Rounds int
	Steps  *Steps
	// DropFailed leaves a subject out from its first failure on. Without, a
	// failure ends the turns.
	DropFailed bool
}

// TakeTurns measures every subject once in each round. When ctx is done it
// returns the cause; the subjects have the samples up to then.
func TakeTurns[S any](ctx context.Context, t Turns, subjects []*Subject[S]) error {
	for round := range t.Rounds {
		for _, s := range subjects {
			if s.Err != nil {
				continue
			}
			if ctx.Err() != nil {
				return interrupted(ctx)
			}
			t.Steps.Next(s.What)
			sample, err := s.Measure(ctx)
			switch {
			case ctx.Err() != nil:
				return interrupted(ctx)
			case err == nil:
				s.Samples = append(s.Samples, sample)
			case t.DropFailed:
				s.Samples, s.Err = nil, err
				t.Steps.Done += t.Rounds - round - 1
			default:
				return fmt.Errorf("%s: %w", s.What, err)
			}
		}
	}
	return nil
}

func interrupted(ctx context.Context) error {
	return fmt.Errorf("interrupted: %w", context.Cause(ctx))
}

// Sleep waits for a duration, or until ctx is done, and returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stallLimit is how much longer than asked for a measurement takes if nothing
// moves: on a busy machine, a program may not even have run.
const stallLimit = 5 * time.Second

// Window reads counters at the beginning and at the end of a measurement of at
// least d, which lasts until something has moved.
func Window[R any](ctx context.Context, d time.Duration, read func() (R, error), moved func(before, after R) bool) (before, after R, err error) {
	start := time.Now()
	if before, err = read(); err != nil {
		return before, after, err
	}
	for {
		if err = Sleep(ctx, d); err != nil {
			return before, after, err
		}
		if after, err = read(); err != nil || moved(before, after) {
			return before, after, err
		}
		if took := time.Since(start); took > d+stallLimit {
			return before, after, fmt.Errorf("nothing moved within %v", took.Round(time.Millisecond))
		}
	}
}
