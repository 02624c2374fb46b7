// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// End tells the job's other servers, which follow this one, that the job has ended, and why; nil
// means that all workers have finished. Call it before the gRPC server stops. Later calls do
// nothing.
func (s *ParameterServer) End(why error) {
	s.once.Do(func() {
		s.why = why
		close(s.ended)
	})
}

// Unfinished returns the workers that have not finished.
func (s *ParameterServer) Unfinished() []uint16 { return s.barrier.unfinishedWorkers() }

// Follow implements the service.
func (s *ParameterServer) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	ctx := stream.Context()
	if err := access.CallerOf(ctx).NeedServer(req.Job); err != nil {
		return err
	}
	if req.Job != uint32(s.cfg.Job) {
		return s.otherJob(req.Job)
	}
	s.cfg.Log.Info("another server follows", "index", req.Index)
	if err := stream.Send(&pb.FollowResponse{GraceMs: uint32(s.cfg.Grace.Milliseconds())}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.ended:
	}
	if s.why == nil {
		return nil
	}
	told := status.New(codes.Aborted, s.why.Error())
	var detail protoadapt.MessageV1
	switch {
	case errors.Is(s.why, ErrRemoved):
		detail = &pb.Removed{}
	case errors.Is(s.why, ErrDiverged):
		detail = &pb.Diverged{}
	default:
		return told.Err()
	}
	if detailed, err := told.WithDetails(detail); err == nil {
		told = detailed
	}
	return told.Err()
}

// Follow follows the server with index 0 of a job, over a connection to it, as the one with the
// given index, until ctx ends. When that server has ended the job, or cannot be reached for its
// grace period, ended is called, once: with nil if all workers have finished. A server of an
// earlier release cannot be followed: then ended is not called.
func Follow(ctx context.Context, conn *grpc.ClientConn, job uint16, index int, ended func(error)) error {
	client := pb.NewParameterServerClient(conn)
	req := &pb.FollowRequest{Job: uint32(job), Index: uint32(index)}
	_, err := Stay(ctx,
		func(ctx context.Context, _ *pb.FollowResponse) (grpc.ServerStreamingClient[pb.FollowResponse], error) {
			return client.Follow(ctx, req)
		},
		func(r *pb.FollowResponse) time.Duration { return time.Duration(r.GraceMs) * time.Millisecond }, nil,
		func(err error) {
			if errors.Is(err, io.EOF) {
				ended(nil)
				return
			}
			ended(withReason(status.Convert(err), fmt.Errorf("parameter server 0 has ended the job: %w",
				access.CallError("parameter server 0", "follow", err))))
		})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return access.CallError("parameter server 0", "follow", err)
}
