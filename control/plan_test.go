// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// follows makes a service follow a plan, whose version is a variable.
func follows(version *atomic.Uint64) func(*ParameterServerConfig) {
	version.Store(1)
	return func(c *ParameterServerConfig) {
		c.Plan = func(worker uint16) *pb.Plan {
			return &pb.Plan{Version: version.Load(), PartRows: uint32(worker)}
		}
	}
}

func (w *worker) adopt(t *testing.T, version uint64) error {
	_, err := w.Adopt(t.Context(), &pb.AdoptRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Version: version})
	return err
}

// A plan that has changed is told to each worker, with its own part, also after a reconnect; the
// server knows who has not adopted it: not one that has joined since, or that has left.
func TestPlanIsToldUntilAllHaveAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var version atomic.Uint64
		s := startServer(t, follows(&version))
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		if p := one.member.Plan; p.GetVersion() != 1 || p.PartRows != 1 {
			t.Errorf("worker 1 joins by the plan %v", p)
		}
		missing := func(of uint64, want ...uint16) {
			t.Helper()
			got := s.service.NotAdopted(of)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("workers %v have not adopted plan %d, want %v", got, of, want)
			}
		}
		missing(1)
		if err := two.join(t); err != nil {
			t.Fatal(err)
		}
		version.Store(2)
		s.service.PlanChanged()
		for i, w := range []*worker{one, two} {
			if m, err := w.stream.Recv(); err != nil || m.Plan.GetVersion() != 2 || m.Plan.PartRows != uint32(1+i) {
				t.Errorf("worker %d is told %v, %v", w.id, m, err)
			}
		}
		missing(2, 1, 2)
		wants(t, "a plan of the future", one.adopt(t, 3), codes.InvalidArgument, "worker 1 adopts plan 3, and the newest is 2")
		for range 2 { // its answer may have been lost
			if err := one.adopt(t, 2); err != nil {
				t.Error(err)
			}
		}
		if err := one.adopt(t, 1); err != nil { // late
			t.Error(err)
		}
		missing(2, 2)
		token := two.member.Token
		if err := two.join(t, func(r *pb.JoinRequest) { r.Token = token }); err != nil || two.member.Plan.GetVersion() != 2 {
			t.Errorf("after a reconnect worker 2 is told %v, %v", two.member, err)
		}
		missing(2, 2) // it has not adopted it by that
		if err := two.leave(t); err != nil {
			t.Error(err)
		}
		missing(2)
		if err := two.join(t); err != nil || two.member.Plan.GetVersion() != 2 {
			t.Errorf("another worker 2 joins by %v, %v", two.member, err)
		}
		missing(2)
	})
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one := s.worker(t, 1)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		wants(t, "a job without a plan", one.adopt(t, 1), codes.FailedPrecondition, "follows no plan")
	})
}

// An operator alone may change the plan, at the server that has it.
func TestPlanIsChangedByAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := startServer(t, func(c *ParameterServerConfig) {
			c.ChangePlan = func(context.Context, *pb.ChangePlanRequest) (*pb.ChangePlanResponse, error) {
				if asked++; asked == 1 {
					return nil, ErrNoLog
				}
				return &pb.ChangePlanResponse{Version: 4}, nil
			}
		})
		call := func(from string, job uint32) (*pb.ChangePlanResponse, error) {
			return pb.NewParameterServerClient(s.dial(t, access.Security{}, from)).ChangePlan(t.Context(),
				&pb.ChangePlanRequest{Job: job})
		}
		const own = "192.0.2.1"
		_, err := call("192.0.2.3", 5)
		wants(t, "another host", err, codes.PermissionDenied, "service's own host", "192.0.2.3")
		_, err = call(own, 6)
		wants(t, "another job", err, codes.NotFound, "job 6 is not served here")
		if asked != 0 {
			t.Error("they change the plan")
		}
		_, err = call(own, 5)
		wants(t, "a refusal", err, codes.FailedPrecondition, "cannot go on without its aggregator")
		if answer, err := call(own, 5); err != nil || answer.Version != 4 {
			t.Errorf("%v, %v", answer, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		_, err := pb.NewParameterServerClient(s.dial(t, access.Security{}, "192.0.2.1")).ChangePlan(t.Context(),
			&pb.ChangePlanRequest{Job: 5})
		wants(t, "a job without a plan", err, codes.FailedPrecondition, "job 5 follows no plan")
	})
}
