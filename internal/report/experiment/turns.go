// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"fmt"
	"time"
)

// Progress is called before each measurement with the number of those that are
// done, the number of all, and a description of this one.
type Progress func(done, total int, what string)

// ProgressCounter counts the measurements of a run. Its zero value counts in silence.
type ProgressCounter struct {
	Progress    Progress // may be nil
	Done, Total int
}

// Next announces a measurement.
func (s *ProgressCounter) Next(what string) {
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

	Samples []S // one of each round, in order
}

// TakeTurns measures every subject once in each round, until one fails. When ctx is done it
// returns the cause; the subjects have the samples up to then.
func TakeTurns[S any](ctx context.Context, rounds int, steps *ProgressCounter, subjects []*Subject[S]) error {
	for range rounds {
		for _, s := range subjects {
			if ctx.Err() != nil {
				return interrupted(ctx)
			}
			steps.Next(s.What)
			sample, err := s.Measure(ctx)
			if ctx.Err() != nil {
				return interrupted(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.What, err)
			}
			s.Samples = append(s.Samples, sample)
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
const stallLimit = 10 * time.Second

// Window reads counters at the beginning and at the end of a measurement of at
// least d, which lasts until something has moved.
func Window[R any](ctx context.Context, d time.Duration, read func() (R, error),
	moved func(before, after R) bool) (before, after R, err error) {
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
