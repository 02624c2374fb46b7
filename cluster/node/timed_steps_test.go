// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// takeNoSteps makes a cluster's training one without barriers, whose weights are nevertheless
// known. Its rate is so low that all scores stay 0 to the last bit, so gradients do not depend on
// the weights, and all numbers are multiples of a power of two that floats hold.
func takeNoSteps(t *testing.T, c *cluster.Config) {
	t.Helper()
	c.Job.Sync, c.Job.Harvest, c.Job.Staleness = false, 2*time.Millisecond, 3
	c.Model = cluster.Model{Kind: "lr", Optimizer: "sgd", LearningRate: 0x1p-60, Batch: 16, Epochs: 2, Seed: 4}
	c.Data.Synthetic.Rows = 16 * 13 * len(c.Workers)
	for i := range c.Servers {
		c.Servers[i].CheckpointSteps = 0
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	buildHotSet(t, c)
}

// Without barriers, each gradient counts once, too, though it went to one of several shares, and
// frames were lost; with several servers as with one.
func TestSharesWithoutSteps(t *testing.T) {
	for name, c := range map[string]*cluster.Config{
		"at one switch": newCluster(t, 3), "at three": newFabric(t, 3, 1), "with two servers": newFabric(t, 2, 2),
	} {
		if c.Job.Plan == "" {
			c.Job.IDs = []uint16{6, 7}
		}
		for i := range c.Switches {
			c.Switches[i].Slots = 200
		}
		takeNoSteps(t, c)
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		startSwitches(t, c)
		out := trainSharded(soon(t), t, c, nil, nil)
		for _, err := range out.errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		got := out.servers[0].WeightsSHA256
		if len(c.Servers) > 1 {
			got = hash(merged(t, c))
		}
		if want := hash(reference(t, c)); got != want {
			t.Errorf("%s: the weights are %s, those of one process %s", name, got, want)
		}
		if out.servers[0].HotPairs == 0 || out.servers[0].Shares < 2 {
			t.Errorf("%s: the switches have summed %d pairs of %d shares", name, out.servers[0].HotPairs, out.servers[0].Shares)
		}
	}
}

// startSwitches runs all switches of a cluster until the test ends.
func startSwitches(t *testing.T, c *cluster.Config) {
	t.Helper()
	if c.Job.Plan == "" {
		startSwitch(t, c)
		return
	}
	startFabric(t, c)
}

// A share that does not answer holds up no step for longer than another period, and is in one when
// it does.
func TestStepsDoNotWaitForAShare(t *testing.T) {
	c := newFabric(t, 2, 1)
	for i := range c.Switches {
		c.Switches[i].Slots = 250
	}
	takeNoSteps(t, c)
	startSwitch(t, onlySwitch(t, c, "core"))
	answers := make(chan struct{})
	silent := grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
		handle grpc.StreamHandler,
	) error {
		return handle(srv, silentStream{stream, answers})
	})
	t.Cleanup(runSwitchOn(t, onlySwitch(t, c, "b"), testLog(t), Machine{Server: []grpc.ServerOption{silent}}))
	ctx := soon(t)
	var committed sync.WaitGroup
	committed.Go(func() {
		defer close(answers)
		if err := awaitStep(ctx, t, c); err != nil {
			t.Error(err)
		}
	})
	out := trainCluster(ctx, t, c, hooks{})
	committed.Wait()
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if want := hash(reference(t, c)); out.server.WeightsSHA256 != want {
		t.Errorf("the weights are %s, those of one process %s", out.server.WeightsSHA256, want)
	}
}

// silentStream sends no harvest before there are answers.
type silentStream struct {
	grpc.ServerStream
	answers <-chan struct{}
}

func (s silentStream) SendMsg(m any) error {
	if _, is := m.(*pb.HarvestChunk); is {
		select {
		case <-s.answers:
		case <-s.Context().Done():
		}
	}
	return s.ServerStream.SendMsg(m)
}

// awaitStep returns when the server has ended a step that changes weights.
func awaitStep(ctx context.Context, t *testing.T, c *cluster.Config) error {
	conn, err := access.Dial(ctx, access.ServerOf(c.Job.ID), c.Server.Control, access.Security{}, eventLimit, testLog(t))
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		stats, err := pb.NewParameterServerClient(conn).Stats(ctx, &pb.StatsRequest{})
		if err != nil {
			return err
		}
		if stats.Steps > 0 {
			return nil
		}
		_ = pauseFor(ctx, time.Millisecond)
	}
	return context.Cause(ctx)
}

// A step has what was reported before it was asked for, when all shares have answered, and nothing
// of later.
func TestReportsOfTimedSteps(t *testing.T) {
	steps, reports := newTimedSteps(), newProgress(false, 0)
	settled := func(want ...uint64) {
		t.Helper()
		if got := []uint64{reports.settled[1], reports.settled[2]}; !slices.Equal(got, want) {
			t.Errorf("settled are %v, want %v", got, want)
		}
	}
	report := func(worker uint16, n uint64) {
		if err := reports.addReport(worker, n, 0); err != nil {
			t.Fatal(err)
		}
	}
	report(1, 5)
	first := &askedStep{requests: map[uint64]uint64{70: 1, 80: 1}, reports: reports.takeReports()}
	report(1, 6)
	report(2, 3)
	steps.noteHarvest(70, 1)
	steps.noteHarvest(80, 0) // one that answers nothing
	if steps.haveAnswered(first) {
		t.Error("a share has not answered, and the step has its sums")
	}
	second := reports.takeReports() // of a worker's report, for which all are asked again, and answer sooner
	steps.noteHarvest(80, 2)
	if !steps.haveAnswered(first) {
		t.Error("all shares have answered")
	}
	third := &askedStep{requests: map[uint64]uint64{70: 2, 80: 3}}
	steps.closeShare(70)
	if steps.haveAnswered(third) {
		t.Error("one share is closed, the other has not answered, and the step has the sums of both")
	}
	steps.noteHarvest(80, 3)
	if !steps.haveAnswered(third) {
		t.Error("a step waits for a share that is closed")
	}
	reports.settleUpTo(second)
	settled(6, 3)
	reports.settleUpTo(first.reports)
	settled(6, 3)
}
