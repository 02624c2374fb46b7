// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// An operator alone may move a job, and only at the server that harvests it; with the answer comes
// why it is refused.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []*pb.DrainRequest
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Drain = func(_ context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
				if asked = append(asked, req); req.To != nil {
					return nil, errors.New("the job stays")
				}
				return &pb.DrainResponse{From: 3, Reason: "they are full"}, nil
			}
		})
		call := func(from string, req *pb.DrainRequest) (*pb.DrainResponse, error) {
			return pb.NewParameterServerClient(s.dial(t, access.Security{}, from)).Drain(t.Context(), req)
		}
		const own = "192.0.2.1"
		_, err := call("192.0.2.3", &pb.DrainRequest{Job: 5})
		wants(t, "another host", err, codes.PermissionDenied, "service's own host", "192.0.2.3")
		_, err = call(own, &pb.DrainRequest{Job: 6})
		wants(t, "another job", err, codes.NotFound, "job 6 is not served here")
		if len(asked) != 0 {
			t.Error("they move the job")
		}
		two := uint32(2)
		_, err = call(own, &pb.DrainRequest{Job: 5, To: &two})
		wants(t, "an aggregator that does not take it", err, codes.FailedPrecondition, "the job stays")
		answer, err := call(own, &pb.DrainRequest{Job: 5})
		if err != nil || answer.From != 3 || answer.To != nil || answer.Reason != "they are full" {
			t.Errorf("%v, %v", answer, err)
		}
		if len(asked) != 2 || asked[0].GetTo() != 2 || asked[1].To != nil {
			t.Errorf("it was asked for %v", asked)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		_, err := pb.NewParameterServerClient(s.dial(t, access.Security{}, "192.0.2.1")).Drain(t.Context(), &pb.DrainRequest{Job: 5})
		wants(t, "a server that does not harvest", err, codes.FailedPrecondition, "ask its first server")
	})
}
