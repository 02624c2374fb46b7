// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Drain implements the service.
func (s *ParameterServer) Drain(ctx context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
	if err := access.CallerOf(ctx).NeedOperator(); err != nil {
		return nil, err
	}
	if req.Job != uint32(s.cfg.Job) {
		return nil, s.otherJob(req.Job)
	}
	if s.cfg.Drain == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"this server does not harvest job %d: ask its first server", s.cfg.Job)
	}
	var to *int
	if req.To != nil {
		at := int(*req.To)
		to = &at
	}
	answer, err := s.cfg.Drain(ctx, to)
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case s.ctx.Err() != nil:
		return nil, errStopping
	}
	return nil, status.Error(codes.FailedPrecondition, err.Error())
}
