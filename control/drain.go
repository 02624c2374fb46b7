// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Drain implements the service.
func (s *ParameterServer) Drain(ctx context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
	if err := s.mayOperate(ctx, req.Job); err != nil {
		return nil, err
	}
	if s.cfg.Drain == nil {
		return nil, status.Errorf(codes.FailedPrecondition,
			"this server does not harvest job %d: ask its first server", s.cfg.Job)
	}
	answer, err := s.cfg.Drain(ctx, req)
	return answer, s.operated(ctx, err)
}
