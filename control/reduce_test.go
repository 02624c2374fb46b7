// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// reducedDim is the number of floats in a row.
const reducedDim = 9

// reduce calls the service as an agent's host does.
func (w *worker) reduce(t *testing.T, step uint64, refused *DroppedError, hot ...HotFrames) (Sums, error) {
	t.Helper()
	req := &pb.ReduceRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Step: step}
	if refused != nil {
		req.Refused = refused.Message()
	}
	for _, h := range hot {
		req.Hot = &pb.HotFrames{Sent: h.Sent, Answered: h.Answered}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := w.Reduce(ctx, req)
	if err != nil {
		return Sums{}, err
	}
	return ReceiveSums(stream, reducedDim)
}

// All workers that request the sums of a step get the same ones, and again if they repeat the
// request. A worker with refused gradients drops the step for all, including those at a barrier;
// the next step works.
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
			c.Reduce = func(_ context.Context, step uint64, _ bool) (Sums, error) {
				if step == 3 {
					return Sums{}, nil
				}
				return want, nil
			}
			c.Drop = func(_ context.Context, step uint64, _ bool) error {
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
		wants(t, "a barrier of that step", err1, codes.Aborted, "a gradient of one of the workers was refused, so that the step was dropped for all: key 90")
		if why = nil; !errors.As(droppedIn(err1), &why) || *why != (DroppedError{Key: 90, KeyKnown: true}) {
			t.Errorf("%v", err1)
		}
		if why = nil; errors.As(droppedIn(errStopping), &why) {
			t.Error("a service that ends has dropped a step")
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

// A step is harvested unless all workers report that all of their hot frames were answered before
// an earlier harvest.
func TestStepsWithoutHotFramesAreNotHarvested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var harvests, drops []uint64
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			end := func(step uint64, quiet bool) {
				if !quiet {
					harvests = append(harvests, step)
				}
			}
			c.Reduce = func(_ context.Context, step uint64, quiet bool) (Sums, error) {
				end(step, quiet)
				if step == 14 {
					return Sums{}, grpctest.ErrCut
				}
				return Sums{}, nil
			}
			c.Drop = func(_ context.Context, step uint64, quiet bool) error {
				drops = append(drops, step)
				end(step, quiet)
				return nil
			}
		})
		s.waits(t)
		one, two := s.joined(t)
		both := func(first, second func() error) {
			answer := make(chan error, 1)
			go func() { answer <- first() }()
			if err := errors.Join(second(), <-answer); err != nil {
				t.Error(err)
			}
		}
		at := func(w *worker, step uint64, refused *DroppedError, hot ...HotFrames) func() error {
			return func() error {
				_, err := w.reduce(t, step, refused, hot...)
				var dropped *DroppedError
				if errors.As(err, &dropped) {
					return nil
				}
				return err
			}
		}
		all := func(n uint32) HotFrames { return HotFrames{Sent: n, Answered: n} }
		both(at(one, 0, nil, all(0)), at(two, 0, nil, all(0))) // the first one
		both(at(one, 1, nil, all(0)), at(two, 1, nil, all(0)))
		both(at(one, 2, nil, all(7)), at(two, 2, nil, all(0))) // one has sent
		both(at(one, 3, nil, all(7)), at(two, 3, nil, all(0)))
		both(at(one, 4, nil, HotFrames{Sent: 9, Answered: 8}), at(two, 4, nil, all(0))) // one is in flight
		both(at(one, 5, nil, all(9)), at(two, 5, nil, all(0)))                          // and may have arrived after the harvest
		both(at(one, 6, nil, all(9)), at(two, 6, nil))                                  // two does not report
		both(at(one, 7, nil, all(9)), at(two, 7, nil, all(0)))
		both(at(one, 8, nil, all(9)), at(two, 8, nil, all(0)))
		both(at(one, 9, nil, all(9)), func() error { return two.barrier(t, 9) })
		both(at(one, 10, nil, all(9)), at(two, 10, nil, all(0)))
		both(at(one, 11, &DroppedError{}, all(9)), at(two, 11, nil, all(0)))
		both(at(one, 12, &DroppedError{}, all(10)), at(two, 12, nil, all(0)))
		both(at(one, 13, nil, all(10)), at(two, 13, nil, all(0)))
		for _, w := range []*worker{one, two} { // a harvest that fails has nothing
			go func() {
				wants(t, "a harvest that fails", at(w, 14, nil, all(11))(), codes.FailedPrecondition, grpctest.ErrCut.Error())
			}()
		}
		synctest.Wait()
		both(at(one, 15, nil, all(11)), at(two, 15, nil, all(11)))
		both(at(one, 16, nil, all(11)), at(two, 16, nil, all(11)))
		if err := two.done(t); err != nil { // it may have sent since
			t.Error(err)
		}
		if err := at(one, 17, nil, all(11))(); err != nil {
			t.Error(err)
		}
		if err := at(one, 18, nil, all(11))(); err != nil {
			t.Error(err)
		}
		if want := []uint64{0, 2, 4, 5, 6, 7, 9, 10, 12, 14, 15, 17}; !slices.Equal(harvests, want) || !slices.Equal(drops, []uint64{11, 12}) {
			t.Errorf("harvests at the ends of steps %v, want %v; dropped %v", harvests, want, drops)
		}
		if err := errors.Join(one.done(t), one.leave(t), two.leave(t)); err != nil {
			t.Error(err)
		}
	})
}

// What a worker reported at the end of a step before it left does not speak for its next admission,
// which may have sent frames and reports none.
func TestReportOfAFormerAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var harvests []uint64
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			c.Reduce = func(_ context.Context, step uint64, quiet bool) (Sums, error) {
				if !quiet {
					harvests = append(harvests, step)
				}
				return Sums{}, nil
			}
		})
		ended := s.waits(t)
		one, two := s.joined(t)
		at := func(w worker, step uint64) chan error {
			answer := make(chan error, 1)
			go func() {
				_, err := w.reduce(t, step, nil, HotFrames{})
				answer <- err
			}()
			return answer
		}
		for step := range uint64(2) {
			first, second := at(*one, step), at(*two, step)
			if err := errors.Join(<-first, <-second); err != nil {
				t.Fatal(err)
			}
		}
		former := at(*two, 2)
		synctest.Wait()
		if err := two.suspend(t); err != nil {
			t.Fatal(err)
		}
		two = s.worker(t, 2)
		if err := two.join(t); err != nil {
			t.Fatal(err)
		}
		first := at(*one, 2)
		if err := errors.Join(two.barrier(t, 2), <-first, <-former); err != nil {
			t.Error(err)
		}
		if want := []uint64{0, 2}; !slices.Equal(harvests, want) {
			t.Errorf("harvests at the ends of steps %v, want %v", harvests, want)
		}
		if err := errors.Join(one.done(t), two.done(t), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// Workers that reach the end of a step by frames and by calls meet each other. A quiet step ends in
// the call if its last worker arrives by a frame; other steps are harvested or dropped separately.
// Refused workers get the reason, or the sums, by a call.
func TestArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []string
		var s *parameterServer
		sums := func(step uint64) Sums { return Sums{Keys: []uint64{step}, Rows: make([]float32, reducedDim)} }
		s = startServer(t, sync5, func(c *ParameterServerConfig) {
			c.Reduce = func(_ context.Context, step uint64, quiet bool) (Sums, error) {
				ends = append(ends, fmt.Sprint(step, " beside, quiet ", quiet))
				return sums(step), nil
			}
			c.ReduceHere = func(step uint64, over func(Sums, *DroppedError)) {
				ends = append(ends, fmt.Sprint(step, " here"))
				over(sums(step), nil)
			}
			c.Give = func(step uint64, got Sums, ok bool) {
				// A worker with sums may reach the end of the next step at once.
				b := s.service.barrier
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.step != step+1 || ok != (len(got.Keys) == 1 && got.Keys[0] == step) {
					t.Errorf("step %d is given %v, %v, and %d is due", step, got, ok, b.step)
				}
				ends = append(ends, fmt.Sprint(step, " given"))
			}
			c.Drop = func(_ context.Context, step uint64, quiet bool) error {
				ends = append(ends, fmt.Sprint(step, " dropped, quiet ", quiet))
				return nil
			}
		})
		result := s.waits(t)
		one, two := s.joined(t)
		by := func(w *worker, step uint64, hot uint32) bool {
			taken := s.service.Arrive(uint16(w.id), uint16(w.member.GetEpoch()), step, HotFrames{Sent: hot, Answered: hot})
			synctest.Wait()
			return taken
		}
		frames := func(step uint64, hot uint32) {
			t.Helper()
			first, again, other := by(one, step, hot), by(one, step, hot), by(two, step, 0)
			if !first || !again || !other {
				t.Errorf("a step is refused: %d", step)
			}
		}
		frames(0, 0) // the first is always harvested
		frames(1, 0)
		frames(2, 5)
		frames(3, 5)
		if by(one, 3, 5) || by(two, 5, 0) || s.service.Arrive(9, 0, 4, HotFrames{}) {
			t.Error("a step that is over, one that is not due or a stranger is noted")
		}
		if got, err := one.reduce(t, 3, nil); err != nil || !slices.Equal(got.Keys, []uint64{3}) {
			t.Errorf("the sums of the step before: %v, %v", got, err)
		}
		if !by(one, 4, 5) {
			t.Error("step 4 is refused")
		}
		if got, err := two.reduce(t, 4, nil, HotFrames{}); err != nil || !slices.Equal(got.Keys, []uint64{4}) {
			t.Errorf("the sums of a step with frames and calls: %v, %v", got, err)
		}
		var why *DroppedError
		if !by(one, 5, 5) {
			t.Error("step 5 is refused")
		}
		for _, w := range []*worker{two, one} {
			if _, err := w.reduce(t, 5, &DroppedError{}); !errors.As(err, &why) {
				t.Errorf("a step that was dropped: %v", err)
			}
		}
		if want := []string{
			"0 beside, quiet false", "0 given", "1 here", "2 beside, quiet false", "2 given", "3 here", "4 beside, quiet true", "4 given",
			"5 dropped, quiet false", "5 given",
		}; !slices.Equal(ends, want) {
			t.Errorf("steps ended as %q, want %q", ends, want)
		}
		if !by(one, 6, 5) {
			t.Error("step 6 is refused")
		}
		if err := two.leave(t); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if by(one, 6, 5) {
			t.Error("the loss of a worker is not told")
		}
		_, err := one.reduce(t, 6, nil)
		wants(t, "a lost worker", err, codes.FailedPrecondition, "worker 2")
		if err := one.leave(t); err != nil {
			t.Error(err)
		}
		if err := <-result; err == nil {
			t.Error("a lost worker fails nothing")
		}
	})
}

// A worker that was admitted anew has not told of what it sent before, even if it has sent nothing
// since.
func TestQuietWorkersAreTheSame(t *testing.T) {
	s := &ParameterServer{generation: newGeneration(0, 0), harvested: map[lifetime]HotFrames{{1, 3}: {}}}
	for epoch, want := range map[uint16]bool{3: true, 4: false} {
		if s.quiet(&round{workers: 1, hot: map[lifetime]HotFrames{{1, epoch}: {}}}) != want {
			t.Errorf("the worker with the epoch %d is as quiet as the one with 3: %v", epoch, !want)
		}
	}
}

// A job without common steps has no sums of steps, and an invalid row is refused.
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

// A step is dropped also because of a worker that leaves it torn: where no key is known, the error
// does not speak of refused gradients alone.
func TestTextOfADroppedStep(t *testing.T) {
	for _, reason := range []string{"were refused", "left before the end of the step"} {
		if text := (&DroppedError{}).Error(); !strings.Contains(text, reason) {
			t.Errorf("%q, want %q", text, reason)
		}
	}
}
