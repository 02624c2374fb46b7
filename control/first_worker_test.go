// SPDX-License-Identifier: Apache-2.0

package control

import (
	"maps"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// The only worker of a job leaves as if it had not joined: what it brought is forgotten, and what
// the server brought is not, so that a worker with another configuration is still refused.
func TestOnlyWorkerLeavesUnused(t *testing.T) {
	own := map[string]string{"model.batch": "100", "model.seed": "7"}
	s := startServer(t, func(c *ParameterServerConfig) { c.Agree = own })
	w := s.worker(t, 1)
	with := func(data, batch string) func(*pb.JoinRequest) {
		return func(r *pb.JoinRequest) { r.Agree = map[string]string{"data": data, "model.batch": batch} }
	}
	for _, data := range []string{"a file", "another file"} {
		if err := w.join(t, with(data, "100")); err != nil {
			t.Fatal(err)
		}
		if got := s.service.Agreed()["data"]; got != data {
			t.Errorf("agreed on data %q, want %q", got, data)
		}
		if _, err := w.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: w.member.Token, Unused: true}); err != nil {
			t.Fatal(err)
		}
		if got := s.service.Agreed(); !maps.Equal(got, own) {
			t.Errorf("after it, agreed on %v, want %v", got, own)
		}
	}
	err := w.join(t, with("a file", "200"))
	if status.Code(err) != codes.FailedPrecondition || !contains(err, "model.batch: 200 here, 100 at the server") {
		t.Errorf("a worker with another configuration: %v", err)
	}
}
