// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A rewind makes a job with Sync survive the loss of a worker. What the lost one has pushed in the
// open step is incomplete, and nobody knows what is missing: so the server drops the step, ends the
// generation, and ends all admissions. Every worker joins again, with a new epoch, and repeats the
// step. Nothing of before the rewind may count afterwards:
//
//   - frames for the server: their epochs are those of admissions that have ended;
//   - frames for the aggregator, and what is in its banks: the next generation is another instance;
//   - ends of steps: the barrier knows how many rewinds were before an admission.
//
// A server that is started again after its death knows no admission: its workers join again in the
// same way, and go on from its checkpoint. What is left of before has the epochs and the instance
// of the lost one.

// ErrRewound is in the error of an admission that has ended so that the worker joins again: the
// server has ended it, or the aggregator alone, and then the server rewinds when the worker joins.
var ErrRewound = errors.New("the server has ended the worker's admission: a worker may join again, and repeats the open step")

func rewoundStatus() error { return withRewound(status.New(codes.Aborted, ErrRewound.Error())) }

// withRewound adds the detail Rewound to the answer to a worker whose admission has ended.
func withRewound(told *status.Status) error {
	if detailed, err := told.WithDetails(&pb.Rewound{}); err == nil {
		told = detailed
	}
	return told.Err()
}

// callError is [access.CallError], and wraps ErrRewound if the error has the detail Rewound.
func callError(role, call string, err error) error {
	told := access.CallError(role, call, err)
	for _, detail := range status.Convert(err).Details() {
		if _, is := detail.(*pb.Rewound); is {
			return reasonError{told, ErrRewound}
		}
	}
	return told
}

// notAdmitted is the answer to a worker whose admission has ended. In a job that rewinds it may
// have missed that.
func (s *ParameterServer) notAdmitted(err error) error {
	if told := status.Convert(err); err != nil && s.cfg.Rewind != nil && told.Code() == codes.PermissionDenied {
		return withRewound(told)
	}
	return err
}

// mayRewind reports whether the job can go on without a worker until that joins again. The caller
// holds the roster's lock.
func (s *ParameterServer) mayRewind(lost *member, how ending) bool {
	stays := func(m *member) bool { return s.barrier.isRunning(m.ID) && !m.rewinds }
	return s.cfg.Rewind != nil && (how == vanished || how == restarted) && s.MayFence() && s.barrier.failureOf() == nil &&
		!stays(lost) && !slices.ContainsFunc(slices.Collect(maps.Values(s.roster.members)), stays)
}

// rewind ends all admissions and drops the open step. No frame of an admission is taken any more
// when the step is dropped, and no worker is admitted before. The caller holds the roster's lock.
func (s *ParameterServer) rewind(lost uint16, why error) {
	for _, id := range slices.Sorted(maps.Keys(s.roster.members)) {
		m := s.roster.members[id]
		delete(s.roster.members, id)
		m.stopPresence(rewoundStatus())
		if err := s.cfg.Members.Remove(s.ctx, id); err != nil && s.ctx.Err() == nil {
			s.cfg.Log.Warn("cannot withdraw a worker", "worker", id, "error", err)
		}
	}
	if err := s.cfg.Rewind(s.ctx); err != nil {
		s.barrier.loseWorker(lost, why) // the server ends
		return
	}
	s.cfg.Log.Warn("all workers join again and repeat the open step, because one is lost", "worker", lost, "step",
		s.cfg.FirstStep(lost))
	for _, id := range s.barrier.unfinishedWorkers() {
		switch a := s.absent[id]; {
		case id == lost:
			s.await(id, why, s.cfg.Rejoin)
		case s.away[id] || a != nil && a.isAwaited(): // as before
		default:
			s.await(id, fmt.Errorf("worker %d had to join again because of a rewind", id), s.cfg.Rejoin)
		}
	}
}

// Workers that do not join again, which are host agents, cannot repeat a step either: their clients
// can, when they are told that it is dropped. So the loss of one drops the open step at its end,
// with all that the lost one has pushed in it. There the lost one has joined again, with other
// epochs, so that nothing of before comes later.

// mayDrop reports whether the job can go on without a worker until that joins again, by dropping
// the open step: all workers have joined, and none repeats steps. The caller holds the roster's
// lock.
func (s *ParameterServer) mayDrop(how ending) bool {
	_, several := s.cfg.Agree[IndexField]
	return s.cfg.Drop != nil && !several && (how == vanished || how == restarted) && s.barrier.failureOf() == nil &&
		!slices.ContainsFunc(s.barrier.unfinishedWorkers(), func(id uint16) bool { return !s.drops[id] })
}

// dropOpenStep makes the open step be dropped at its end, for which the lost worker has to join
// again. The caller holds the roster's lock.
func (s *ParameterServer) dropOpenStep(lost uint16, why error) {
	s.barrier.departWorker(lost)
	step := s.barrier.tearOpen(lost)
	s.cfg.Log.Warn("the open step will be dropped, because a worker is lost, and the others wait for it there", "worker",
		lost, "step", step)
	s.await(lost, why, s.cfg.Rejoin)
}

// Rewind ends the generation, if there is one, and takes back all arrivals. It must be called in
// the call of the store's goroutine that drops the open step and from which on no harvest is
// applied. It does not wait.
func (s *ParameterServer) Rewind() {
	if g := s.generation; g.hasOne() {
		g.changeFields(g.endIt)
	}
	s.barrier.rewindArrivals()
}
