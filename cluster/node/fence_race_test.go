// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/ps"
)

// joinStream is the stream of a worker that has joined in this process.
type joinStream struct {
	grpc.ServerStream
	ctx   context.Context
	terms chan *pb.Membership
}

func (s joinStream) Context() context.Context { return s.ctx }

func (s joinStream) Send(m *pb.Membership) error {
	select {
	case s.terms <- m:
	default: // later ones
	}
	return nil
}

// newFencible returns a server that may lose its aggregator, and the token of its worker.
func newFencible(t *testing.T) (s *server, token []byte) {
	t.Helper()
	s = newServer(t, true)
	h := newHarvesting(0)
	h.job = s.job
	h.ctx, h.end = context.WithCancelCause(t.Context())
	s.generation.Store(h)
	s.store.BeginGeneration(77)
	s.service = control.NewParameterServer(t.Context(), control.ParameterServerConfig{Job: 5, Instance: 77, KeepLog: true, Sync: true,
		Workers: []uint16{1}, Members: s.loop, Port: s.env.Config.Port, Log: s.env.Log, Settled: s.loop.TakeSteps, Commit: s.commitSync})
	at := joinStream{ctx: t.Context(), terms: make(chan *pb.Membership, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- s.service.Join(&pb.JoinRequest{Job: 5, Sender: 1, Ip: s.env.Config.Workers[0].Address.AsSlice(), KeepsLog: true}, at)
	}()
	select {
	case terms := <-at.terms:
		return s, terms.Token
	case err := <-ended:
		t.Fatal(err)
		return nil, nil
	}
}

// A harvest that meets the fence is applied with its marks, or neither counts. Both wait for the
// store's goroutine, most often in the order in which they were begun; whichever it takes first
// must be whole.
func TestFenceMeetsAHarvest(t *testing.T) {
	taken := 0
	for i := range 10 {
		s, token := newFencible(t)
		var all sync.WaitGroup
		held, release := make(chan struct{}), make(chan struct{})
		all.Go(func() {
			if err := s.loop.Do(t.Context(), func() { close(held); <-release }); err != nil {
				t.Error(err)
			}
		})
		<-held
		var applied error
		meet := []func(){func() {
			applied = s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1, Ranks: []uint32{0}, Sums: []int64{1 << 20}, Frames: 1,
				Marks: []aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}}})
		}, func() {
			if _, err := s.fenceGeneration(t.Context()); err != nil {
				t.Error(err)
			}
		}}
		for n := range meet {
			all.Go(meet[(i+n)%2])
			time.Sleep(time.Millisecond)
		}
		close(release)
		all.Wait()
		answer, err := s.service.Settle(t.Context(), &pb.SettleRequest{Job: 5, Sender: 1, Token: token, Instance: 77, Epoch: 3, Next: 1})
		if err != nil {
			t.Fatal(err)
		}
		var sums int64
		if err := s.loop.Do(t.Context(), func() {
			for _, row := range s.store.Pending() {
				sums += row[0]
			}
		}); err != nil {
			t.Fatal(err)
		}
		marked := answer.Mark.Newest == 9
		if (applied == nil) != marked || marked != (sums == 1<<20) || applied != nil && !errors.Is(applied, ps.ErrFenced) {
			t.Fatalf("the harvest: %v, its mark %+v, its sums %d", applied, answer.Mark, sums)
		}
		if marked {
			taken++
		}
	}
	t.Logf("%d of 10 harvests came before the fence", taken)
}

// The refusal of a harvest that was on its way at the fence does not end the server.
func TestHarvestAfterTheFenceEndsNothing(t *testing.T) {
	s, _ := newFencible(t)
	if _, err := s.fenceGeneration(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1, Ranks: []uint32{0}, Sums: []int64{1 << 20}, Frames: 1})
	if !errors.Is(err, ps.ErrFenced) {
		t.Errorf("a harvest after the fence: %v", err)
	}
}

// A commit that meets the fence ends the step before it, or leaves it open: its workers may have
// frames that are in no harvest, and arrive again when they have settled. The caller of a commit
// learns of the fence only after it.
func TestFenceMeetsACommit(t *testing.T) {
	stopped := 0
	for i := range 10 {
		s, token := newFencible(t)
		before := uint64(0) // steps, at the fence
		s.env.Machine.Fenced = func() { before = s.progress.step }
		arrive := func(instance uint64) error {
			_, err := s.service.Barrier(t.Context(), &pb.BarrierRequest{Job: 5, Sender: 1, Token: token, Step: 0, Instance: instance})
			return err
		}
		var all sync.WaitGroup
		held, release := make(chan struct{}), make(chan struct{})
		all.Go(func() {
			if err := s.loop.Do(t.Context(), func() { close(held); <-release }); err != nil {
				t.Error(err)
			}
		})
		<-held
		var arrived error
		meet := []func(){func() { arrived = arrive(77) }, func() {
			if _, err := s.fenceGeneration(t.Context()); err != nil {
				t.Error(err)
			}
		}}
		for n := range meet {
			all.Go(meet[(i+n)%2])
			time.Sleep(time.Millisecond)
		}
		close(release)
		all.Wait()
		if ended := before == 1; ended != (arrived == nil) || s.progress.step != before {
			t.Fatalf("%d steps before the fence, %d after it; the worker is told %v", before, s.progress.step, arrived)
		}
		if arrived != nil {
			stopped++
			if told := status.Convert(arrived); told.Code() != codes.Aborted || !strings.Contains(told.Message(), "generation has ended") {
				t.Errorf("the worker is told %v", arrived)
			}
		}
		if err := arrive(0); err != nil || s.progress.step != 1 {
			t.Errorf("the worker arrives again: %d steps, %v", s.progress.step, err)
		}
	}
	t.Logf("%d of 10 commits came after the fence", stopped)
}

// A commit whose context has ended at the fence leaves the step open.
func TestFenceStopsACommit(t *testing.T) {
	s := newServer(t, true)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(control.ErrFenced)
	if err := s.endStep(ctx, 3, func() { t.Error("the step is committed") }); !errors.Is(err, control.ErrFenced) {
		t.Errorf("the commit: %v", err)
	}
	if s.progress.step != 0 {
		t.Errorf("%d steps", s.progress.step)
	}
}
