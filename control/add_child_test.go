// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// slowFamily is a job, and another that is to be its child, whose aggregator cannot be reached
// until dialled is closed.
type slowFamily struct {
	parent, child *Owned
	at            [2]*libras
	childAt       *network
	dialled       chan struct{}
}

func newSlowFamily(t *testing.T) *slowFamily {
	t.Helper()
	f := &slowFamily{dialled: make(chan struct{})}
	f.at[1] = startAggregator(t)
	f.childAt = f.at[1].network
	f.at[0] = startAggregator(t, func(cfg *AggregatorConfig) {
		cfg.Dial = func(ctx context.Context, _ netip.AddrPort) (*grpc.ClientConn, error) {
			select {
			case <-f.dialled:
				return f.childAt.dial(t, access.Security{}, "192.0.2.9").ClientConn, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	s := spec()
	s.Slots = 100
	f.parent = f.at[0].create(t, s)
	s.Slots = 50
	f.child = f.at[1].create(t, s)
	return f
}

// add begins a call that adds the child.
func (f *slowFamily) add(ctx context.Context) (answer chan error) {
	answer = make(chan error, 1)
	go func() { answer <- f.parent.AddChild(ctx, childAt, f.child, childRanks) }()
	synctest.Wait()
	return answer
}

// checkHarvest pushes to the child, and expects that in the next harvest of a job.
func (f *slowFamily) checkHarvest(t *testing.T, of *Owned, rank uint32, after uint64) {
	t.Helper()
	epoch := f.at[1].join(t)
	f.at[1].push(t, epoch, 1, 3, 1)
	got := newSums()
	h := NewHarvester(of, got.apply, quiet)
	h.ResumeAfter(after)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() { _ = h.Run(ctx) }()
	if err := h.Now(t.Context()); err != nil || got.rank(rank) != units(t, 1) {
		t.Errorf("a harvest: %v, a sum of %d", err, got.rank(rank))
	}
	if n := len(f.at[0].stats(t).Jobs[0].Children); (n == 1) != (of == f.parent) || n > 1 {
		t.Errorf("%d children", n)
	}
}

// Two calls that add the same child at the same time, as when the connection of the first broke,
// add it once; if the first is given up, the other does.
func TestTwoCallsAddAChild(t *testing.T) {
	for _, givenUp := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newSlowFamily(t)
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			first, second := f.add(ctx), f.add(t.Context())
			if givenUp {
				giveUp()
				synctest.Wait()
			}
			close(f.dialled)
			if err := <-first; (err != nil) != givenUp {
				t.Errorf("the first call: %v", err)
			}
			if err := <-second; err != nil {
				t.Errorf("the second call: %v", err)
			}
			f.checkHarvest(t, f.parent, 63, 0)
		})
	}
}

// A child that is removed while it is being added is none, and its owner can harvest it.
func TestChildIsRemovedWhileItIsAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlowFamily(t)
		added := f.add(t.Context())
		last, err := f.parent.RemoveChild(t.Context(), f.child)
		if err != nil {
			t.Error(err)
		}
		close(f.dialled)
		if err := <-added; err == nil {
			t.Error("it is added")
		}
		f.checkHarvest(t, f.child, 3, last)
	})
}

// tooMuch sends a harvest with more sums than a child has.
type tooMuch struct {
	pb.UnimplementedAggregatorServer
}

func (tooMuch) Harvest(stream harvestStream) error {
	sums := appendGroup(nil, 1<<17-1, make([]int64, 17))
	for i := range 3 {
		if err := stream.Send(&pb.HarvestChunk{Number: 1, Sums: sums, Last: i == 2, Request: 1}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// A child cannot fill the memory of its parent's aggregator: a harvest has no more sums than the
// child has slots.
func TestChildSendsMoreThanItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlowFamily(t)
		f.childAt = newNetwork(t, access.Security{}, func(s *grpc.Server) { pb.RegisterAggregatorServer(s, tooMuch{}) })
		close(f.dialled)
		const want = "harvest 1 contains more than the 50 sums of job 5"
		if err := <-f.add(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	})
}
