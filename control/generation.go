// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A generation is one instance of a job at one aggregator. The server alone decides what counts: it
// applies the harvests of the current generation, tells each worker which of its frames are in them,
// and ends the generation with a fence when it has lost the aggregator. After the fence no harvest of it
// is applied, so each worker can settle: it gets its last mark, and sends the server all frames that
// the mark lacks.

// ErrFenced is in the error of a call that belongs to a generation which has ended.
var ErrFenced = errors.New("the job's generation has ended: its aggregator is lost")

// markEvery is the shortest time between two marks that a worker is told.
const markEvery = 50 * time.Millisecond

// generation is the server's side of the current one.
type generation struct {
	mu       sync.Mutex
	instance uint64 // 0: the job has no aggregator
	ended    uint64 // instance of the last one that has ended
	marks    []aggregator.Mark
	applied  uint64            // counts harvests
	lost     map[uint16]uint64 // workers that were lost with their logs, and the harvests by then
	changes  uint64            // counts changes of the fields above
	changed  chan struct{}     // closed and replaced with each
}

func newGeneration(instance uint64) *generation {
	return &generation{instance: instance, lost: map[uint16]uint64{}, changed: make(chan struct{})}
}

// change changes the fields. f must not wait.
func (g *generation) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.changes++
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *generation) currentInstance() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.instance
}

// refuses returns the answer to a call of a worker whose frames went to an instance, if that has ended.
func (g *generation) refuses(instance uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if instance != 0 && instance == g.ended {
		return fencedStatus()
	}
	return nil
}

func fencedStatus() error {
	told := status.New(codes.Aborted, ErrFenced.Error())
	if detailed, err := told.WithDetails(&pb.Fenced{}); err == nil {
		told = detailed
	}
	return told.Err()
}

// isFenced reports whether an error of a call has the detail Fenced.
func isFenced(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(detail any) bool {
		_, is := detail.(*pb.Fenced)
		return is
	})
}

// markOf returns the mark of a worker, by its number.
func (g *generation) markOf(worker uint16) *aggregator.Mark {
	for i := range g.marks {
		if g.marks[i].Sender == worker {
			return &g.marks[i]
		}
	}
	return nil
}

// Applied records the marks of a harvest. It must be called in the same call of the store's goroutine
// in which the sums are added; an empty harvest has none, nil. After the fence marks do not change: a
// worker may have settled by them.
func (s *ParameterServer) Applied(marks []aggregator.Mark) {
	if marks == nil {
		s.generation.mu.Lock()
		defer s.generation.mu.Unlock()
		s.generation.applied++
		return
	}
	s.generation.change(func() {
		s.generation.applied++
		if s.generation.instance != 0 {
			s.generation.marks = marks
		}
	})
}

// MayFence reports whether the job can go on without its aggregator: all workers keep what they need to
// settle. It may change until the store's goroutine calls Fence.
func (s *ParameterServer) MayFence() bool {
	if !s.cfg.KeepLog {
		return false
	}
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	for _, m := range s.roster.members {
		if !m.keepsLog {
			return false
		}
	}
	return true
}

// Fence ends the generation. It must be called in the call of the store's goroutine from which on no
// harvest is applied. It takes back the arrivals at the end of the step, whose workers may have frames
// that are in no harvest, and stops a commit that has not reached the store. It does not wait.
func (s *ParameterServer) Fence() {
	g := s.generation
	g.change(func() {
		g.ended, g.instance = g.instance, 0
		// A harvest whose bank was swapped before a loss may be applied after it.
		maps.DeleteFunc(g.lost, func(_ uint16, by uint64) bool { return g.applied >= by+2 })
	})
	s.barrier.fence()
	for _, worker := range slices.Sorted(maps.Keys(g.lost)) { // it does not change any more
		s.warnOfLoss(worker)
	}
}

// noteLost notes that a worker is lost. If the aggregator is lost, too, before the worker has settled, what
// it had acknowledged is lost with both. Without steps nothing makes that good.
func (s *ParameterServer) noteLost(m *member) {
	if !m.keepsLog || s.cfg.Sync {
		return
	}
	g := s.generation
	g.mu.Lock()
	unsettled := m.instance != 0 && m.instance == g.ended && !m.settles
	if m.instance != 0 && m.instance == g.instance {
		g.lost[m.ID] = g.applied
	}
	g.mu.Unlock()
	if unsettled {
		s.warnOfLoss(m.ID)
	}
}

func (s *ParameterServer) warnOfLoss(worker uint16) {
	s.cfg.Log.Warn("the aggregator and a worker were lost together, with what it acknowledged to the worker after the "+
		"last harvest: a worker that trains repeats it, clients of an agent cannot", "worker", worker)
}

// HasFenced reports whether the job has lost its aggregator.
func (s *ParameterServer) HasFenced() bool {
	s.generation.mu.Lock()
	defer s.generation.mu.Unlock()
	return s.generation.ended != 0
}

// Settle implements the service.
func (s *ParameterServer) Settle(ctx context.Context, req *pb.SettleRequest) (*pb.SettleResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	g := s.generation
	g.mu.Lock()
	fenced := req.Instance != 0 && req.Instance == g.ended
	m.settles = m.settles || fenced
	mark := aggregator.Mark{Sender: m.ID, Epoch: uint16(req.Epoch)}
	mark.Applied[0] = 1 // number 0
	if last := g.markOf(m.ID); last != nil && uint32(last.Epoch) == req.Epoch {
		mark = *last
	}
	g.mu.Unlock()
	if !fenced {
		return nil, status.Errorf(codes.FailedPrecondition,
			"instance %d of job %d has not ended: a worker settles when the server has told it so", req.Instance, req.Job)
	}
	if s.cfg.Settled != nil {
		if err := s.cfg.Settled(ctx, m.ID, req.Next); err != nil {
			return nil, s.uncommitted(ctx, err)
		}
	}
	return &pb.SettleResponse{Mark: marksMessage([]aggregator.Mark{mark})[0]}, nil
}

// tell sends a worker its marks, and the end of the generation, until its admission ends. The worker knows
// the given instance.
func (s *ParameterServer) tell(ctx context.Context, m *member, c *connection, instance uint64,
	send func(*pb.Membership) error) error {
	g := s.generation
	var seen uint64
	told := &pb.Membership{Instance: instance}
	var pause <-chan time.Time // nil: another message may be sent
	for {
		g.mu.Lock()
		changes, changed, now := g.changes, g.changed, &pb.Membership{Instance: g.instance}
		if mark := g.markOf(m.ID); mark != nil && m.keepsLog {
			now.Committed = marksMessage([]aggregator.Mark{*mark})[0]
		}
		g.mu.Unlock()
		ends := now.Instance != told.Instance
		if (seen != changes || ends) && (pause == nil || ends) {
			seen = changes
			if ends || now.Committed != nil && !sameMark(now.Committed, told.Committed) {
				if err := send(now); err != nil {
					return err
				}
				told, pause = now, time.After(markEvery)
			}
		}
		if seen != changes {
			changed = nil // until the pause has ended
		}
		select {
		case <-changed:
		case <-pause:
			pause = nil
		case <-ctx.Done():
			return nil
		case <-c.over:
			return c.why
		case <-s.ctx.Done():
			return errStopping
		}
	}
}

func sameMark(a, b *pb.HarvestMark) bool {
	return b != nil && a.Epoch == b.Epoch && a.Newest == b.Newest && string(a.Applied) == string(b.Applied)
}
