// SPDX-License-Identifier: Apache-2.0

package bedtest

import (
	"context"
	"sync/atomic"
	"testing"
)

// Context counts what waits for its end, including contexts derived from it as long as they exist.
type Context struct {
	context.Context
	waiting *atomic.Int64
}

// NewContext returns a context that does not end before the test.
func NewContext(t testing.TB) Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return Context{ctx, new(atomic.Int64)}
}

// Waiting returns the number of waiters.
func (c Context) Waiting() int64 { return c.waiting.Load() }

// Value hides that the context is one of package context, which would then not call AfterFunc.
func (Context) Value(any) any { return nil }

// AfterFunc is called by package context to wait for the end (see [context.AfterFunc]).
func (c Context) AfterFunc(f func()) (stop func() bool) {
	c.waiting.Add(1)
	remove := context.AfterFunc(c.Context, f)
	return func() bool {
		stopped := remove()
		if stopped {
			c.waiting.Add(-1)
		}
		return stopped
	}
}
