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
// applies the harvests of the current generation, tells each worker which of its frames are in
// them, and ends the generation with a fence when it has lost the aggregator. After the fence no
// harvest of it is applied, so each worker can settle: it gets its last mark, and sends the server
// all frames that the mark lacks.

// ErrFenced is in the error of a call that belongs to a generation which has ended.
var ErrFenced = errors.New("the job's generation has ended: its aggregator is lost")

// markEvery is the shortest time between two marks that a worker is told.
const markEvery = 50 * time.Millisecond

// When all workers have settled, the server may begin another generation, at any aggregator: so at
// most one that has ended has workers who have to settle. Until they have entered the new one,
// their hot rows go to the server.

// generation is the server's side of the current one.
type generation struct {
	mu       sync.Mutex
	instance uint64 // 0: the job has no aggregator
	at       int    // the aggregator of the instance, by index
	ended    uint64 // instance of the last one that has ended
	marks    []aggregator.Mark
	last     []aggregator.Mark // of the last one that has ended
	epochs   map[uint16]bool   // that workers and jobs had at aggregators
	applied  uint64            // counts harvests
	lost     map[uint16]uint64 // workers that were lost with their logs, and the harvests by then
	logless  map[uint16]bool   // workers that keep no log
	changes  uint64            // counts changes of the fields above
	changed  chan struct{}     // closed and replaced with each
}

func newGeneration(instance uint64, at int) *generation {
	return &generation{instance: instance, at: at, lost: map[uint16]uint64{}, epochs: map[uint16]bool{},
		logless: map[uint16]bool{}, changed: make(chan struct{})}
}

// changeFields changes the fields. f must not wait.
func (g *generation) changeFields(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.changes++
	close(g.changed)
	g.changed = make(chan struct{})
}

// endIt ends the current one. The caller holds the lock.
func (g *generation) endIt() {
	g.ended, g.instance, g.at = g.instance, 0, 0
	g.last, g.marks = g.marks, nil
}

// noteLog notes whether a worker that is admitted keeps a log.
func (g *generation) noteLog(worker uint16, keeps bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if keeps {
		delete(g.logless, worker)
	} else {
		g.logless[worker] = true
	}
}

// currentInstance returns the instance of the current generation and of the last one that has
// ended.
func (g *generation) currentInstance() (instance, ended uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.instance, g.ended
}

// hasOne reports whether there is a current one.
func (g *generation) hasOne() bool {
	instance, _ := g.currentInstance()
	return instance != 0
}

// describeTo puts the generation into what a worker is told.
func (g *generation) describeTo(m *pb.Membership) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.Instance, m.Aggregator, m.Ended = g.instance, uint32(g.at), g.ended
}

// refusalOf returns the answer to a call of a worker whose frames went to an instance, if that has
// ended.
func (g *generation) refusalOf(instance uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if instance != 0 && instance != g.instance && g.ended != 0 {
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

// markOf returns the mark of a worker, by its number, or nil.
func markOf(marks []aggregator.Mark, worker uint16) *aggregator.Mark {
	if at, found := findMark(marks, worker); found {
		return &marks[at]
	}
	return nil
}

// noteEpoch notes that an epoch may be in late frames of this generation.
func (g *generation) noteEpoch(epoch uint16) {
	const most = 4096 // of 65,536: far more than admissions during the lifetime of a frame
	if len(g.epochs) == most {
		clear(g.epochs)
	}
	g.epochs[epoch] = true
}

// Applied records the marks of a harvest. It must be called in the same call of the store's
// goroutine in which the sums are added; an empty harvest has none, nil. After the fence marks do
// not change: a worker may have settled by them.
func (s *ParameterServer) Applied(marks []aggregator.Mark) {
	if marks == nil {
		s.generation.mu.Lock()
		defer s.generation.mu.Unlock()
		s.generation.applied++
		return
	}
	s.generation.changeFields(func() {
		s.generation.applied++
		if s.generation.instance == 0 {
			return
		}
		s.generation.marks = marks
		for _, m := range marks {
			s.generation.noteEpoch(m.Epoch)
		}
	})
}

// ErrNoLog is in the error of a generation that cannot end before the job.
var ErrNoLog = errors.New("the job cannot go on without its aggregator: a worker keeps no log, or the aggregator does not tell whose frames it has")

// MayFence reports whether the job can go on without its aggregator: all workers keep what they
// need to settle. It may change until the store's goroutine calls Fence.
func (s *ParameterServer) MayFence() bool {
	s.generation.mu.Lock()
	defer s.generation.mu.Unlock()
	return s.mayFence()
}

// mayFence is MayFence of a caller that holds the generation's lock.
func (s *ParameterServer) mayFence() bool { return s.cfg.KeepLog && len(s.generation.logless) == 0 }

// Fence ends the generation. It must be called in the call of the store's goroutine from which on
// no harvest is applied. It takes back the arrivals at the end of the step, whose workers may have
// frames that are in no harvest, and stops a commit that has not reached the store. It does not
// wait. If the job cannot go on, it changes nothing, and the error wraps ErrNoLog: a worker may
// have joined since MayFence.
func (s *ParameterServer) Fence() (err error) {
	g := s.generation
	g.changeFields(func() {
		if !s.mayFence() {
			err = ErrNoLog
			return
		}
		g.endIt()
		// A harvest whose bank was swapped before a loss may be applied after it.
		maps.DeleteFunc(g.lost, func(_ uint16, by uint64) bool { return g.applied >= by+2 })
	})
	if err != nil {
		return err
	}
	s.barrier.fenceArrivals()
	for _, worker := range slices.Sorted(maps.Keys(g.lost)) { // it does not change any more
		s.warnOfLoss(worker)
	}
	return nil
}

// AllSettled reports whether every worker has settled in the generation that has ended: then
// another one may begin.
func (s *ParameterServer) AllSettled() bool {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	_, ended := s.generation.currentInstance()
	for _, m := range s.roster.members {
		s.generation.mu.Lock()
		settled := m.left == ended
		s.generation.mu.Unlock()
		if m.keepsLog && !settled {
			return false
		}
	}
	return true
}

// Begin begins another generation: an instance of the job at an aggregator, by its index. All
// workers have settled. It must be called in the call of the store's goroutine from which on
// harvests of the instance are applied, and does not wait.
func (s *ParameterServer) Begin(instance uint64, at int) {
	g := s.generation
	g.changeFields(func() {
		g.instance, g.at, g.marks = instance, at, nil
		clear(g.lost)
	})
	s.barrier.beginGeneration(instance)
}

// UsedEpochs lists the epochs that late frames of earlier generations may have.
func (s *ParameterServer) UsedEpochs() []uint32 {
	g := s.generation
	g.mu.Lock()
	defer g.mu.Unlock()
	var used []uint32
	for _, epoch := range slices.Sorted(maps.Keys(g.epochs)) {
		used = append(used, uint32(epoch))
	}
	return used
}

// noteLost notes that a worker is lost. If the aggregator is lost, too, before the worker has
// settled, what it had acknowledged is lost with both. Without steps nothing makes that good.
func (s *ParameterServer) noteLost(m *member) {
	if !m.keepsLog || s.cfg.Sync {
		return
	}
	g := s.generation
	g.mu.Lock()
	unsettled := g.ended != 0 && m.left != g.ended && m.asked != g.ended
	if g.instance != 0 {
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

// HasFenced reports whether the job is without an aggregator.
func (s *ParameterServer) HasFenced() bool {
	instance, ended := s.generation.currentInstance()
	return instance == 0 && ended != 0
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
	if req.Settled && req.Instance != 0 && req.Instance == m.left { // its answer may have been lost, and more have ended
		g.mu.Unlock()
		return &pb.SettleResponse{}, nil
	}
	mark := aggregator.Mark{Sender: m.ID, Epoch: uint16(req.Epoch)}
	mark.Applied[0] = 1 // number 0
	if last := markOf(g.last, m.ID); last != nil && uint32(last.Epoch) == req.Epoch {
		mark = *last
	}
	if fenced {
		m.asked = req.Instance
		g.noteEpoch(mark.Epoch)
		if req.Settled {
			m.left = req.Instance
		}
	}
	g.mu.Unlock()
	if !fenced {
		return nil, status.Errorf(codes.FailedPrecondition,
			"instance %d of job %d has not ended: a worker settles when the server has told it so", req.Instance, req.Job)
	}
	if req.Settled {
		return &pb.SettleResponse{}, nil
	}
	if s.cfg.Settled != nil {
		if err := s.cfg.Settled(ctx, m.ID, req.Next); err != nil {
			return nil, s.uncommitted(ctx, err)
		}
	}
	return &pb.SettleResponse{Mark: marksMessage([]aggregator.Mark{mark})[0]}, nil
}

// streamMembership sends a worker its marks, the ends and beginnings of generations, and other
// plans, until its admission ends. The worker knows the terms.
func (s *ParameterServer) streamMembership(ctx context.Context, m *member, c *connection, terms *pb.Membership,
	send func(*pb.Membership) error) error {
	g := s.generation
	var seen uint64
	told, plan := &pb.Membership{Instance: terms.Instance, Ended: terms.Ended}, terms.Plan.GetVersion()
	var pause <-chan time.Time // nil: another message may be sent
	for {
		g.mu.Lock()
		changes, changed := g.changes, g.changed
		now := &pb.Membership{Instance: g.instance, Aggregator: uint32(g.at), Ended: g.ended}
		if mark := markOf(g.marks, m.ID); mark != nil && m.keepsLog {
			now.Committed = marksMessage([]aggregator.Mark{*mark})[0]
		}
		g.mu.Unlock()
		if s.cfg.Plan != nil {
			if newest := s.cfg.Plan(m.ID); newest.Version != plan {
				now.Plan = newest
			}
		}
		ends := now.Instance != told.Instance || now.Ended != told.Ended || now.Plan != nil
		if (seen != changes || ends) && (pause == nil || ends) {
			seen = changes
			if ends || now.Committed != nil && !sameMark(now.Committed, told.Committed) {
				if err := send(now); err != nil {
					return err
				}
				told, pause = now, time.After(markEvery)
				if now.Plan != nil {
					plan = now.Plan.Version
				}
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
