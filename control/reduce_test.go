// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// reducedDim is the floats of a row.
const reducedDim = 9

// reduce calls the service as an agent's host does.
func (w *worker) reduce(t *testing.T, step uint64, refused *DroppedError) (Sums, error) {
	t.Helper()
	req := &pb.ReduceRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Step: step}
	if refused != nil {
		req.Refused = refused.Message()
	}
	stream, err := w.Reduce(t.Context(), req)
	if err != nil {
		return Sums{}, err
	}
	return ReceiveSums(stream, reducedDim)
}

// All workers that ask for the sums of a step get the same, whatever their number, and again if they ask again. A
// worker whose gradients were refused has the step dropped for all, also for those at a barrier; the next step goes on.
func TestReduce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := Sums{}
		for i := range 100_000 { // several messages
			want.Keys = append(want.Keys, uint64(i)<<40)
			for j := range reducedDim {
				want.Rows = append(want.Rows, float32(i)/float32(j+3))
			}
		}
		var dropped []uint64
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			c.Reduce = func(_ context.Context, step uint64) (Sums, error) {
				if step == 3 {
					return Sums{}, nil
				}
				return want, nil
			}
			c.Drop = func(_ context.Context, step uint64) error {
				dropped = append(dropped, step)
				return nil
			}
		})
		s.waits(t)
		one, two := s.joined(t)
		both := func(first, second func() error) (err1, err2 error) {
			answer := make(chan error, 1)
			go func() { answer <- first() }()
			synctest.Wait()
			if len(answer) > 0 {
				t.Fatalf("one worker goes on alone: %v", <-answer)
			}
			err2 = second()
			return <-answer, err2
		}
		same := func(w *worker, step uint64) func() error {
			return func() error {
				got, err := w.reduce(t, step, nil)
				if err == nil && (!slices.Equal(got.Keys, want.Keys) || !slices.Equal(got.Rows, want.Rows)) {
					err = errors.New("other sums")
				}
				return err
			}
		}
		err1, err2 := both(same(one, 0), same(two, 0))
		if err := errors.Join(err1, err2, same(one, 0)()); err != nil {
			t.Error(err)
		}
		err1, err2 = both(same(one, 1), func() error { return two.barrier(t, 1) })
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		}
		var why *DroppedError
		err1, err2 = both(func() error { return two.barrier(t, 2) }, func() error {
			_, err := one.reduce(t, 2, &DroppedError{Key: 90, KeyKnown: true})
			return err
		})
		if !errors.As(err2, &why) || *why != (DroppedError{Key: 90, KeyKnown: true}) || !slices.Equal(dropped, []uint64{2}) {
			t.Errorf("the worker whose gradients were refused: %v, dropped %v", err2, dropped)
		}
		wants(t, "a barrier of that step", err1, codes.Aborted, "key 90")
		if !errors.As(DroppedOf(err1), &why) {
			t.Errorf("%v", err1)
		}
		err1, err2 = both(func() error {
			got, err := two.reduce(t, 3, nil)
			if len(got.Keys) > 0 {
				t.Errorf("an empty step has %v", got.Keys)
			}
			return err
		}, func() error { return one.barrier(t, 3) })
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		}
		if len(s.commits) != 0 {
			t.Errorf("steps %v are committed without sums", s.commits)
		}
		for _, w := range []*worker{one, two} {
			if err := errors.Join(w.done(t), w.leave(t)); err != nil {
				t.Error(err)
			}
		}
	})
}

// A job without steps in common has no sums of one, and what is no row is refused.
func TestReduceIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		s.waits(t)
		one, two := s.joined(t)
		_, err := one.reduce(t, 0, nil)
		wants(t, "an asynchronous job", err, codes.FailedPrecondition, "set job.sync")
		for _, w := range []*worker{one, two} {
			if err := errors.Join(w.done(t), w.leave(t)); err != nil {
				t.Error(err)
			}
		}
	})
}
