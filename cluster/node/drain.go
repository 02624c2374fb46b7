// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// How a job leaves an aggregator that is alive: the next generation is prepared, everything is
// harvested, and then the fence and the settlement are those of one that is lost. So a drain that
// fails in the middle is no other case than a loss.

// move is a request to leave the aggregator.
type move struct {
	to     *int // the aggregator to go to; nil: any or, unless the job stays, none
	stays  bool // where it is if no other aggregator takes it
	why    string
	reason error  // why others have not taken it
	run    uint64 // of the daemon that is drained
	answer chan moved
}

// moved is the answer to a move.
type moved struct {
	*pb.DrainResponse
	err error
}

func newMove(to *int, why string) *move { return &move{to: to, why: why, answer: make(chan moved, 1)} }

// tellMoved answers that a job has left an aggregator, and is at another one or, with nil, at none.
// It may be called on no move, nil, and more than once.
func (m *move) tellMoved(from int, to *int) {
	if m == nil {
		return
	}
	answer := &pb.DrainResponse{From: uint32(from)}
	if to != nil {
		at := uint32(*to)
		answer.To = &at
	}
	if m.reason != nil {
		answer.Reason = m.reason.Error()
	}
	m.finishMove(moved{answer, nil})
}

func (m *move) finishMove(with moved) {
	select {
	case m.answer <- with:
	default: // it has an answer
	}
}

// errNoAggregator refuses to move a job that is on its way anyway.
var errNoAggregator = errors.New("the job has no aggregator now: its hot rows go to the server until one takes it")

// drainJob moves the job away from its aggregator or, if it follows a plan, from one of its
// switches. run is the context of the server.
func (s *server) drainJob(ctx, run context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
	var to *int
	if req.To != nil {
		at := int(*req.To)
		to = &at
	}
	switch now := s.plan.Load(); {
	case now != nil && req.Switch == "":
		return nil, fmt.Errorf("the job follows a plan: name the switch that it is to leave, one of %v", now.by.Switches)
	case req.Switch != "" && to != nil:
		return nil, errors.New("a job that follows a plan leaves a switch for those of the plan: leave the other aggregator out")
	case req.Switch != "":
		return s.drainSwitch(ctx, run, req.Switch)
	}
	if n := len(s.env.Config.Aggregators()); to != nil && (*to < 0 || *to >= n) {
		return nil, fmt.Errorf("there is no aggregator %d: 0 is the switch, and the server's file lists %d standbys after it",
			*to, n-1)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(run, func() { end(context.Cause(run)) })()
	m := newMove(to, "an operator drains its aggregator")
	h := s.generation.Load()
	select {
	case s.moves <- m:
	case <-h.fenced:
		return nil, errNoAggregator
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case answer := <-m.answer:
		return answer.DrainResponse, answer.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// prepareGeneration opens the generation to which the job moves, nil if it goes on without an
// aggregator, and harvests what the present one has. It fails, and nothing has changed, if the job
// stays.
func (s *server) prepareGeneration(ctx context.Context, h *harvesting, m *move) (next *harvesting, err error) {
	if !s.service.MayFence() {
		return nil, control.ErrNoLog
	}
	for _, at := range s.moveTargets(h.at, m) {
		var failed error
		if next, failed = s.openMarked(ctx, at, candidateLimit); failed == nil {
			break
		}
		m.reason = errors.Join(m.reason, s.refusalAt(at, failed))
	}
	switch {
	case next != nil:
	case m.to != nil && *m.to == h.at:
		return nil, errors.New("the job is at that aggregator")
	case m.to != nil || m.stays:
		return nil, errors.Join(errors.New("the job stays where it is: no other aggregator takes it"), m.reason)
	}
	if !m.stays {
		m.run = s.runOf(ctx, h)
	}
	now, end := context.WithTimeout(ctx, candidateLimit)
	defer end()
	_ = h.takeAll(now, s.env.Machine.turn) // what is not harvested is settled
	return next, nil
}

// noteLeft notes which aggregator a job has left by a move, nil if it has lost it.
func (s *server) noteLeft(h *harvesting, m *move) {
	switch {
	case m == nil:
	case m.stays:
		s.evacuated[h.at] = true
	default:
		s.drained[h.at] = m.run
	}
}

// moveTargets lists the aggregators to which a job may move from one.
func (s *server) moveTargets(from int, m *move) (list []int) {
	if m.to != nil {
		if *m.to != from {
			list = append(list, *m.to)
		}
		return list
	}
	count := len(s.env.Config.Aggregators())
	for n := 1; n < count; n++ {
		if at := (from + n) % count; !m.stays || !s.evacuated[at] {
			list = append(list, at)
		}
	}
	return list
}

// errNoMarks is why a job with standbys is not created at an aggregator.
var errNoMarks = errors.New("does not tell whose frames a harvest has, so that the job could not leave it: run the daemon of this release there, with plane xdp or model, or leave standbys out")

// openMarked opens a generation whose harvests say whose frames they have: only such a one can be
// left.
func (s *server) openMarked(ctx context.Context, at int, reach time.Duration) (*harvesting, error) {
	h, err := s.openGeneration(ctx, at, reach, 0)
	if err == nil && !h.job.Marks {
		s.discardGeneration(h)
		return nil, fmt.Errorf("the aggregator at %v %w", s.env.Config.Aggregators()[at].Control, errNoMarks)
	}
	return h, err
}

// runOf returns what distinguishes the run of a generation's daemon from others, 0 if it does not
// say.
func (s *server) runOf(ctx context.Context, h *harvesting) uint64 {
	ctx, end := context.WithTimeout(ctx, candidateLimit)
	defer end()
	stats, err := pb.NewAggregatorClient(h.conn).Stats(ctx, &pb.StatsRequest{})
	if err != nil {
		return 0
	}
	return stats.Daemon
}

// checkDrained refuses the aggregator that was drained, if no other one has taken the job yet,
// until its daemon is another one: whoever drained it has not finished.
func (s *server) checkDrained(ctx context.Context, h *harvesting) error {
	run, drained := s.drained[h.at]
	if !drained {
		return nil
	}
	if now := s.runOf(ctx, h); now == run || now == 0 {
		return errors.New("it was drained, and has not been restarted since")
	}
	delete(s.drained, h.at)
	return nil
}

// pressure counts the frames that an aggregator drops.
type pressure struct {
	beats     int // of the window
	over      int // windows in succession with too many
	rests     int // windows until it reports again
	begun     bool
	all, lost uint64 // at the window's beginning
}

const (
	// pressureWindow is the time in which frames are counted.
	pressureWindow = 5 * time.Second
	// pressureWindows is the number of windows in succession with too many dropped frames that make a
	// job move.
	pressureWindows = 2
	// pressureShare is how many frames there are for one that may be dropped.
	pressureShare = 100
	// pressureFrames is the number of frames in a window below which none is too many.
	pressureFrames = 100
	// pressureRest is the time between two attempts to move.
	pressureRest = time.Minute
)

// takeHeartbeat takes a heartbeat, and reports whether the job should move.
func (p *pressure) takeHeartbeat(m *pb.HoldResponse) bool {
	all, lost := m.Frames+m.Raced, m.Raced+m.Unsent
	if !p.begun {
		p.begun, p.all, p.lost = true, all, lost
		return false
	}
	if p.beats++; p.beats < int(pressureWindow/control.HeartbeatEvery) {
		return false
	}
	came, dropped := all-p.all, lost-p.lost
	p.beats, p.all, p.lost = 0, all, lost
	if p.rests > 0 {
		p.rests--
		return false
	}
	if came < pressureFrames || dropped*pressureShare <= came {
		p.over = 0
		return false
	}
	if p.over++; p.over < pressureWindows {
		return false
	}
	p.over, p.rests = 0, int(pressureRest/pressureWindow)
	return true
}

// watchDrops makes a generation report when its aggregator drops too many frames.
func (s *server) watchDrops(h *harvesting) {
	if !s.env.Config.Switch.Evacuate {
		return
	}
	var p pressure
	h.job.Beat = func(m *pb.HoldResponse) {
		if p.takeHeartbeat(m) {
			select {
			case h.pressed <- struct{}{}:
			default: // it is known
			}
		}
	}
}
