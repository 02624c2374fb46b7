// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Barrier waits for the other workers at the end of a step, until everything that was acknowledged
// to them is part of the weights. A push of the worker meanwhile may become part of either step.
// The error wraps a [*DroppedError] if the step was dropped.
func (m *Membership) Barrier(ctx context.Context, step uint64) error {
	return m.call(ctx, "barrier", func(ctx context.Context, s *joinedServer) error {
		return m.inGeneration(ctx, func(ctx context.Context, instance uint64) error {
			_, err := s.Barrier(ctx, &pb.BarrierRequest{Job: m.job, Sender: m.worker, Token: s.token,
				Step: s.next + step - m.NextStep, Instance: instance})
			return droppedIn(err)
		})
	})
}

// Reduce is Barrier, and returns the sums of the step, of rows of dim floats. refused is the reason
// why gradients of this worker are missing from them, or nil; hot are its frames for the
// aggregator. Jobs with several servers have no sums, because each server would have only a part.
func (m *Membership) Reduce(ctx context.Context, step uint64, dim int, refused *DroppedError,
	hot HotFrames) (sums Sums, err error) {
	if len(m.servers) != 1 {
		return sums, fmt.Errorf("reduce: the job has %d parameter servers, each with a part of the sums: use a job with one", len(m.servers))
	}
	req := &pb.ReduceRequest{Job: m.job, Sender: m.worker, Token: m.servers[0].token, Step: step,
		Hot: &pb.HotFrames{Sent: hot.Sent, Answered: hot.Answered}}
	if refused != nil {
		req.Refused = refused.Message()
	}
	err = m.call(ctx, "reduce", func(ctx context.Context, s *joinedServer) error {
		return m.inGeneration(ctx, func(ctx context.Context, instance uint64) error {
			req.Instance = instance
			stream, err := s.Reduce(ctx, req)
			if err == nil {
				sums, err = ReceiveSums(stream, dim)
			}
			return err
		})
	})
	return sums, err
}

// Report reports to the server how many steps and whole epochs the worker has trained, and whether
// the last step ended an epoch: everything that it pushed until then is acknowledged. It returns
// when that is part of the weights.
func (m *Membership) Report(ctx context.Context, steps uint64, epochs int, ends bool) error {
	return m.call(ctx, "report", func(ctx context.Context, s *joinedServer) error {
		return m.inGeneration(ctx, func(ctx context.Context, instance uint64) error {
			_, err := s.Report(ctx, &pb.ReportRequest{Job: m.job, Sender: m.worker, Token: s.token, Steps: steps,
				Epochs: uint32(epochs), Ends: ends, Instance: instance})
			return err
		})
	})
}

// Done reports to the server that the worker has finished. A job ends when all have.
func (m *Membership) Done(ctx context.Context) error {
	return m.call(ctx, "done", func(ctx context.Context, s *joinedServer) error {
		_, err := s.Done(ctx, &pb.DoneRequest{Job: m.job, Sender: m.worker, Token: s.token})
		return err
	})
}

// Tear reports that what the worker pushed in a step is incomplete, and will stay so: unless the
// step has ended, it is dropped for all workers at its end. It precedes a departure with Back, or
// Done, in the middle of a step. Only jobs whose workers take steps together can drop one.
func (m *Membership) Tear(ctx context.Context, step uint64) error {
	return m.call(ctx, "tear", func(ctx context.Context, s *joinedServer) error {
		_, err := s.Tear(ctx, &pb.TearRequest{Job: m.job, Sender: m.worker, Token: s.token, Step: step})
		return err
	})
}

// call calls the servers, for as long as the admission lasts.
func (m *Membership) call(caller context.Context, name string, f func(context.Context, *joinedServer) error) error {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()
	role, err := m.ask(ctx, f)
	switch ended := context.Cause(m.ctx); {
	case ended != nil && (errors.Is(err, ended) || status.Code(err) == codes.Canceled),
		errors.Is(ended, errLeft) && err != nil: // a service may answer a leave before the context of this call ends
		return fmt.Errorf("%s: %w", name, ended)
	case err != nil && caller.Err() != nil:
		return fmt.Errorf("%s: %s: %w", role, name, caller.Err())
	}
	return callError(role, name, err)
}

// ask calls all servers at the same time. The first error cancels the others; role is its server's.
func (m *Membership) ask(ctx context.Context, f func(context.Context, *joinedServer) error) (role string, err error) {
	if len(m.servers) == 0 {
		return "", ctx.Err()
	}
	if len(m.servers) == 1 {
		s := &m.servers[0]
		return s.role, Repeat(ctx, func(ctx context.Context) error { return f(ctx, s) })
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		role string
		err  error
	}
	answers := make(chan answer, len(m.servers))
	for i := range m.servers {
		s := &m.servers[i]
		go func() {
			answers <- answer{s.role, Repeat(ctx, func(ctx context.Context) error { return f(ctx, s) })}
		}()
	}
	for range m.servers {
		if a := <-answers; a.err != nil && err == nil {
			role, err = a.role, a.err
			cancel()
		}
	}
	return role, err
}

// Leave ends the admission, at the aggregator first, and closes the connections. Before Done, the
// worker counts as lost. It waits at most 2 seconds for a service that does not answer; one that
// has ended cannot be notified. A second call does nothing.
func (m *Membership) Leave() { m.LeaveAs(Departure{}) }

// LeaveAs is Leave, and tells the services how the worker leaves. After [ErrRewound] it tells them
// nothing: the worker joins again.
func (m *Membership) LeaveAs(how Departure) {
	m.ended.Store(true) // the services' answers to a leave are no loss
	m.end(errLeft)
	again := errors.Is(context.Cause(m.ctx), ErrRewound) // its next admission ends what is left of this one
	m.kept.mu.Lock()
	here := m.kept.here
	m.kept.here = nil
	m.kept.mu.Unlock()
	if here != nil {
		if !again {
			_ = here.leave(how)
		}
		here.endStreams()
	}
	m.releaseShares(how, !again, func(*heldShare) bool { return false })
	for _, leave := range slices.Backward(m.leaves) {
		if !again {
			_ = leave(how)
		}
	}
	m.leaves = nil
	for _, c := range m.conns {
		c.Close()
	}
}
