// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Report implements the service.
func (s *ParameterServer) Report(ctx context.Context, req *pb.ReportRequest) (*pb.ReportResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	if err := s.generation.refusalOf(req.Instance); err != nil {
		return nil, err
	}
	if s.cfg.Report != nil {
		if err := s.cfg.Report(ctx, m.ID, req); err != nil {
			return nil, s.uncommitted(ctx, err)
		}
	}
	return &pb.ReportResponse{}, nil
}

// Done implements the service.
func (s *ParameterServer) Done(ctx context.Context, req *pb.DoneRequest) (*pb.DoneResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	s.barrier.finishWorker(m.ID)
	return &pb.DoneResponse{}, nil
}

// Tear implements the service.
func (s *ParameterServer) Tear(ctx context.Context, req *pb.TearRequest) (*pb.TearResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	if s.cfg.Drop == nil {
		return nil, s.noSteps()
	}
	if s.barrier.tearStep(m.ID, req.Step) {
		s.cfg.Log.Info("a worker leaves a step torn, which will be dropped", "worker", m.ID, "step", req.Step)
	}
	return &pb.TearResponse{}, nil
}

// IsTorn reports whether the open step is to be dropped. It is final when Wait has returned.
func (s *ParameterServer) IsTorn() bool { return s.barrier.isTorn() }

// Leave implements the service.
func (s *ParameterServer) Leave(ctx context.Context, req *pb.LeaveRequest) (*pb.LeaveResponse, error) {
	if _, err := s.member(ctx, req.Job, req.Sender, req.Token); err != nil {
		return nil, err
	}
	var unsettled error
	if req.Back && s.cfg.Away != nil {
		unsettled = s.cfg.Away(ctx, uint16(req.Sender))
	}
	if err := s.roster.endAdmission(req); err != nil {
		return nil, err
	}
	if unsettled != nil { // the worker has left nevertheless
		return nil, s.uncommitted(ctx, unsettled)
	}
	return &pb.LeaveResponse{}, nil
}
