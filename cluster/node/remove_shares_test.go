// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// startedAnew is a switch daemon that has created a job, and is started anew before that is
// removed.
type startedAnew struct {
	pb.AggregatorClient
	refusal codes.Code
}

func (startedAnew) CreateJob(context.Context, *pb.JobSpec, ...grpc.CallOption) (*pb.Job, error) {
	return &pb.Job{Instance: 1, Key: []byte("key")}, nil
}

func (s startedAnew) RemoveJob(context.Context, *pb.RemoveJobRequest, ...grpc.CallOption) (*pb.RemoveJobResponse, error) {
	return nil, status.Error(s.refusal, "no job 7")
}

// A job whose switch was started anew is gone already; what else a switch refuses is an error.
func TestRemovedSharesMayBeGone(t *testing.T) {
	for refusal, gone := range map[codes.Code]bool{codes.NotFound: true, codes.PermissionDenied: false} {
		job, err := control.CreateJob(t.Context(), startedAnew{refusal: refusal}, &pb.JobSpec{Job: 7}, time.Second, testLog(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := removeShares(t.Context(), []*openShare{{}, {job: job}}); (err == nil) != gone {
			t.Errorf("%v: the removal ends with %v", refusal, err)
		}
	}
}
