// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A job that follows a plan goes on while that changes: server 0 opens the shares that are new, and
// tells the workers. Each joins these, pushes to them from its next push on, waits until all that
// it sent to the others is acknowledged, leaves them, and adopts the plan. When all have, nothing
// comes to the old shares any more. See follow_plan.go for the workers' side.

// PlanChanged makes the service tell workers the plan that ParameterServerConfig.Plan returns from
// now on.
func (s *ParameterServer) PlanChanged() { s.generation.changeFields(func() {}) }

// NotAdopted lists the workers that take part and have not adopted the plan of a version. One that
// joins later is told that plan at once.
func (s *ParameterServer) NotAdopted(version uint64) (workers []uint16) {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	s.generation.mu.Lock()
	defer s.generation.mu.Unlock()
	for id, m := range s.roster.members {
		if m.adopted < version {
			workers = append(workers, id)
		}
	}
	return workers
}

// noteAdopted notes that a worker sends nothing to the shares of plans before that of a version.
func (s *ParameterServer) noteAdopted(m *member, version uint64) {
	s.generation.mu.Lock()
	defer s.generation.mu.Unlock()
	m.adopted = max(m.adopted, version)
}

// Adopt implements the service.
func (s *ParameterServer) Adopt(ctx context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	if s.cfg.Plan == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "job %d follows no plan", req.Job)
	}
	if now := s.cfg.Plan(m.ID).Version; req.Version > now {
		return nil, status.Errorf(codes.InvalidArgument, "worker %d adopts plan %d, and the newest is %d", m.ID,
			req.Version, now)
	}
	s.noteAdopted(m, req.Version)
	return &pb.AdoptResponse{}, nil
}

// ChangePlan implements the service.
func (s *ParameterServer) ChangePlan(ctx context.Context, req *pb.ChangePlanRequest) (*pb.ChangePlanResponse, error) {
	if err := s.mayOperate(ctx, req.Job); err != nil {
		return nil, err
	}
	if s.cfg.ChangePlan == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"job %d follows no plan, or another server has it: set job.plan, and ask its first server", req.Job)
	}
	answer, err := s.cfg.ChangePlan(ctx, req)
	return answer, s.operated(ctx, err)
}

// mayOperate refuses a call that is not of an operator of this job.
func (s *ParameterServer) mayOperate(ctx context.Context, job uint32) error {
	if err := access.CallerOf(ctx).NeedOperator(); err != nil {
		return err
	}
	if job != uint32(s.cfg.Job) {
		return s.otherJob(job)
	}
	return nil
}

// operated returns the answer to an operator whose call has failed.
func (s *ParameterServer) operated(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case s.ctx.Err() != nil:
		return errStopping
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}
