// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Each call requires its role, of its job; and a worker must have the address that it claims.
func TestRolesAreNeeded(t *testing.T) {
	a := grpctest.NewAuthority(t)
	model := must(aggregator.NewModel(aggregator.Config{}))
	service := NewAggregator(t.Context(), AggregatorConfig{Plane: model, Stripes: 1, Lease: time.Hour, Log: quiet})
	t.Cleanup(service.Close)
	server := NewParameterServer(t.Context(), ParameterServerConfig{
		Job: 5, Workers: []uint16{1, 2}, HotSet: hotSet, Members: &roll{}, Log: quiet,
		Commit: func(context.Context, uint64) error { return nil },
		Stats:  func(context.Context) (*pb.ServerStats, error) { return &pb.ServerStats{}, nil },
	})
	t.Cleanup(server.Close)
	n := newNetwork(t, security(a, "192.0.2.1", "libra://switch", "libra://server/5"), func(s *grpc.Server) {
		pb.RegisterAggregatorServer(s, service)
		pb.RegisterParameterServerServer(s, server)
	})
	as := func(names ...string) (pb.AggregatorClient, pb.ParameterServerClient) {
		c := n.dial(t, security(a, names...), "192.0.2.3")
		return pb.NewAggregatorClient(c), pb.NewParameterServerClient(c)
	}
	owner, _ := as("libra://server/5")
	job := must(CreateJob(t.Context(), owner, spec(), 0, quiet))
	other := spec()
	other.Job = 6
	all, _ := as("libra://server/*")
	job6 := must(CreateJob(t.Context(), all, other, 0, quiet))

	// The other roles, with the right key and the right address.
	for _, name := range []string{"libra://server/6", "libra://server", "libra://server/5/5", "libra://worker/5", "libra://switch", "libra://operator", "https://server/5", "libra://server/05"} {
		c, _ := as(name, workerIP.String())
		_, err := c.CreateJob(t.Context(), &pb.JobSpec{Job: 5})
		wants(t, "create with "+name, err, codes.PermissionDenied, "libra://server/5", name)
		hold := must(c.Hold(t.Context(), &pb.HoldRequest{Job: 5, Key: job.Key}))
		_, err = hold.Recv()
		wants(t, "hold with "+name, err, codes.PermissionDenied)
		_, err = c.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: job.Key})
		wants(t, "remove with "+name, err, codes.PermissionDenied)
		harvest := must(c.Harvest(t.Context()))
		_ = harvest.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key}}})
		if name == "libra://switch" { // of a parent, which has the key
			_ = harvest.CloseSend()
			_, err = harvest.Recv()
			if !errors.Is(err, io.EOF) {
				t.Errorf("harvest with %s: %v", name, err)
			}
			harvest = must(c.Harvest(t.Context()))
			_ = harvest.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job6.Key}}})
		}
		_, err = harvest.Recv()
		wants(t, "harvest with "+name, err, codes.PermissionDenied)
		_, err = c.AddChild(t.Context(), &pb.AddChildRequest{Job: 5, Key: job.Key})
		wants(t, "add a child with "+name, err, codes.PermissionDenied)
		_, err = c.RemoveChild(t.Context(), &pb.RemoveChildRequest{Job: 5, Key: job.Key})
		wants(t, "remove a child with "+name, err, codes.PermissionDenied)
	}
	for _, name := range []string{"libra://worker/6", "libra://worker/5/2", "libra://worker/5/*", "libra://worker", "libra://worker/5/1/1", "libra://server/5", "libra://operator"} {
		ac, sc := as(name, workerIP.String())
		_, _, err := joinAs(t.Context(), ac, joinRequest())
		wants(t, "join with "+name, err, codes.PermissionDenied, "libra://worker/5/1")
		join := must(sc.Join(t.Context(), joinRequest()))
		_, err = join.Recv()
		wants(t, "join the server with "+name, err, codes.PermissionDenied, "libra://worker/5/1")
		for what, call := range map[string]func() error{
			"barrier": func() error { _, err := sc.Barrier(t.Context(), &pb.BarrierRequest{Job: 5, Sender: 1}); return err },
			"report":  func() error { _, err := sc.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 1}); return err },
			"done":    func() error { _, err := sc.Done(t.Context(), &pb.DoneRequest{Job: 5, Sender: 1}); return err },
			"reduce": func() error {
				stream := must(sc.Reduce(t.Context(), &pb.ReduceRequest{Job: 5, Sender: 1}))
				_, err := stream.Recv()
				return err
			},
			"leave": func() error { _, err := sc.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1}); return err },
		} {
			wants(t, what+" with "+name, call(), codes.PermissionDenied, "libra://worker/5/1")
		}
	}
	for _, name := range []string{"libra://worker/5", "libra://worker/5/1", "libra://worker/*", "libra://worker/*/1"} {
		ac, sc := as(name, "192.0.2.77")
		_, _, err := joinAs(t.Context(), ac, joinRequest())
		wants(t, "claimed address", err, codes.PermissionDenied, workerIP.String(), "192.0.2.77")
		join := must(sc.Join(t.Context(), joinRequest()))
		_, err = join.Recv()
		wants(t, "claimed address", err, codes.PermissionDenied, workerIP.String(), "192.0.2.77")

		ac, sc = as(name, "192.0.2.77", workerIP.String())
		_, admitted, err := joinAs(t.Context(), ac, joinRequest())
		if err != nil {
			t.Fatalf("join with %s: %v", name, err)
		}
		join = must(sc.Join(t.Context(), joinRequest()))
		member, err := join.Recv()
		if err != nil {
			t.Fatalf("join the server with %s: %v", name, err)
		}
		must(ac.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: admitted.Token}))
		must(sc.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: member.Token}))
	}

	// Callers only get statistics of their own jobs.
	for name, want := range map[string][]uint32{
		"libra://switch": {5, 6}, "libra://operator": {5, 6}, "libra://server/*": {5, 6}, "libra://server/6": {6}, "libra://worker/5": {5},
		"libra://worker/6/3": {6}, "libra://worker/7": nil, "libra://other": nil,
	} {
		ac, sc := as(name)
		var got []uint32
		for _, j := range must(ac.Stats(t.Context(), &pb.StatsRequest{})).Jobs {
			got = append(got, j.Job)
		}
		if len(got) != len(want) || len(got) > 0 && (got[0] != want[0] || got[len(got)-1] != want[len(want)-1]) {
			t.Errorf("%s sees the jobs %v, want %v", name, got, want)
		}
		_, err := sc.Stats(t.Context(), &pb.StatsRequest{})
		if allowed := len(want) > 0 && want[0] == 5; allowed != (err == nil) {
			t.Errorf("%s asks the server of job 5: %v", name, err)
		}
	}

	// Without the key, an operator can remove jobs.
	_, err := owner.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5})
	wants(t, "a server without the key", err, codes.PermissionDenied, "libra://operator")
	operator, _ := as("libra://operator")
	must(operator.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}))
	if err := job6.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func security(a *grpctest.Authority, names ...string) access.Security {
	return must(access.LoadSecurity(a.Files(names...)))
}

// Over plain TCP an operator is a caller on the switch's own host, or the daemon itself.
func TestOperatorsWithoutTLS(t *testing.T) {
	for from, want := range map[string]bool{"192.0.2.1": true, "127.0.0.1": true, "::1": true, "::ffff:192.0.2.1": true, "192.0.2.2": false, "192.0.2.129": false} {
		l := startAggregator(t)
		l.create(t, spec())
		_, err := pb.NewAggregatorClient(l.dial(t, access.Security{}, from)).RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5})
		if want && err != nil {
			t.Errorf("from %s: %v", from, err)
		}
		if !want {
			wants(t, "from "+from, err, codes.PermissionDenied, "own host", from)
		}
	}
	l := startAggregator(t)
	l.create(t, spec())
	if _, err := l.service.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
		t.Errorf("in the same process: %v", err)
	}
}
