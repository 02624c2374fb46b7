// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"fmt"
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Check implements the service.
func (s *ParameterServer) Check(ctx context.Context, req *pb.JoinRequest) (*pb.Membership, error) {
	sender, err := s.sender(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.roster.checkSender(sender, req); err != nil {
		return nil, err
	}
	return s.terms(sender.ID), nil
}

// terms returns the answer to a worker that joins, without what belongs to its admission.
func (s *ParameterServer) terms(worker uint16) *pb.Membership {
	training := s.agree.valueOf(TrainingField)
	terms := &pb.Membership{
		Dimension: uint32(s.cfg.Dimension), Workers: uint32(len(s.cfg.Workers)),
		KeepLog: s.cfg.KeepLog, FirstStep: s.cfg.FirstStep(worker),
		GraceMs: uint32(s.cfg.Grace.Milliseconds()), Checkpoints: s.cfg.Checkpoints,
		Training: cmp.Or(training, s.training), NewTraining: training == "", Shares: s.cfg.Shares,
		Run: s.run,
	}
	if s.cfg.Plan != nil {
		terms.Plan = s.cfg.Plan(worker)
	}
	s.generation.describeTo(terms)
	return terms
}

// absent is a worker that is lost, or was lost before its latest admission.
type absent struct {
	deadline
	lost  error
	until time.Time
}

// await gives a lost worker time to join again. The caller holds the roster's lock.
func (s *ParameterServer) await(worker uint16, lost error, limit time.Duration) {
	if earlier := s.absent[worker]; earlier != nil {
		earlier.stopTimer()
	}
	a := &absent{deadline{lock: s.roster.mu}, lost, time.Now().Add(limit)}
	s.absent[worker] = a
	a.startTimer(max(0, limit), func() {
		s.barrier.loseWorker(worker, fmt.Errorf("%w, and it did not join again within %v", lost, s.cfg.Rejoin))
	})
}
