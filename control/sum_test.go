// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
)

// A step whose end finds a sum too large is dropped for all, with the key, whether they reduce or
// wait at a barrier, and however it ends. A worker that repeats its request is told the same, and
// the next step works.
func TestSumsTooLargeDropAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := &DroppedError{Key: 90, KeyKnown: true, Sum: true}
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			c.Reduce = func(_ context.Context, step uint64, _ bool) (Sums, error) {
				if step == 0 {
					return Sums{}, large
				}
				return Sums{}, nil
			}
			c.ReduceHere = func(_ uint64, over func(Sums, *DroppedError)) { over(Sums{}, large) }
			c.Give = func(step uint64, _ Sums, ok bool) {
				if ok != (step != 0) {
					t.Errorf("step %d is given: %v", step, ok)
				}
			}
			c.Drop = func(context.Context, uint64, bool) error { return errors.New("it is over already") }
		})
		s.waits(t)
		one, two := s.joined(t)
		at := make(chan error, 1)
		go func() { at <- two.barrier(t, 0) }()
		is := func(what string, err error) {
			t.Helper()
			var why *DroppedError
			if !errors.As(err, &why) || *why != *large {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := one.reduce(t, 0, nil)
		is("a reduce", err)
		err = <-at
		wants(t, "a barrier", err, codes.Aborted, "the step was dropped for all: the sum of key 90 is too large for a float32: scale the gradients down")
		is("a barrier", droppedIn(err))
		_, err = one.reduce(t, 0, nil)
		is("a repeated reduce", err)

		go func() {
			_, err := two.reduce(t, 1, nil, HotFrames{})
			at <- err
		}()
		if _, err := one.reduce(t, 1, nil, HotFrames{}); err != nil {
			t.Errorf("the next step: %v", err)
		}
		if err := <-at; err != nil {
			t.Errorf("the next step: %v", err)
		}
		for _, w := range []*worker{one, two} {
			if !s.service.Arrive(uint16(w.id), uint16(w.member.GetEpoch()), 2, HotFrames{}) {
				t.Error("a step is refused")
			}
		}
		for _, w := range []*worker{one, two} { // its frames were refused, and it asks the service
			if _, err := w.reduce(t, 2, nil, HotFrames{}); err == nil {
				t.Error("a step with a sum that is too large has sums")
			} else {
				is("a step that ended by frames", err)
			}
		}
		for _, w := range []*worker{one, two} {
			if err := errors.Join(w.done(t), w.leave(t)); err != nil {
				t.Error(err)
			}
		}
	})
}
