// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"sync/atomic"
	"time"
)

// watchEvery is the time between two looks at counters. A look takes a few microseconds of an
// endpoint's time.
const watchEvery = time.Second

// Watch keeps the latest value of something that takes time to ask for.
type Watch[T any] struct {
	latest atomic.Pointer[stamped[T]]
}

type stamped[T any] struct {
	value    T
	answered bool
	at       time.Time
}

// Run asks about once a second, one question at a time, until ctx ends. It keeps the last answer
// where a question fails or is not answered.
func (w *Watch[T]) Run(ctx context.Context, ask func(context.Context) (T, error)) {
	w.latest.Store(&stamped[T]{at: time.Now()})
	for ctx.Err() == nil {
		if v, err := ask(ctx); err == nil {
			w.latest.Store(&stamped[T]{v, true, time.Now()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchEvery):
		}
	}
}

// Latest returns the last answer and its age. If there is none yet, ok is false, and age is for how
// long it has been asked for.
func (w *Watch[T]) Latest() (v T, age time.Duration, ok bool) {
	s := w.latest.Load()
	if s == nil {
		return v, 0, false
	}
	return s.value, time.Since(s.at), s.answered
}
