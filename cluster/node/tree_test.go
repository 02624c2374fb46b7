// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// newTree is newFabric of three switches in a row, each of which harvests the next one.
func newTree(t *testing.T) *cluster.Config {
	t.Helper()
	c := newFabric(t, 3, 1)
	c.Switches[1].Parent, c.Switches[2].Parent = "core", "b"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func checkTraining(t *testing.T, c *cluster.Config, out outcome) {
	t.Helper()
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if want := hash(reference(t, c)); out.server.WeightsSHA256 != want {
		t.Errorf("the weights are %s, those of one process %s", out.server.WeightsSHA256, want)
	}
	var sent uint64
	for _, w := range out.workers {
		sent += w.HotPairs
	}
	if out.server.HotPairs != sent || sent == 0 {
		t.Errorf("the switches have summed %d pairs, the workers have sent %d", out.server.HotPairs, sent)
	}
	if c.TLS == (cluster.TLS{}) {
		checkNoJobs(t, c)
	}
}

// The server gets one harvest a step from three switches of a tree, and its training ends with the
// weights of one process, bit for bit, though frames are lost; with certificates, too.
func TestTreeTrainsToTheSameWeights(t *testing.T) {
	for _, secured := range []bool{false, true} {
		c := newTree(t)
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		if secured {
			var everybody []netip.Addr
			for _, s := range c.Switches {
				everybody = append(everybody, s.Address)
			}
			everybody = append(everybody, c.Server.Address)
			for _, w := range c.Workers {
				everybody = append(everybody, w.Address)
			}
			c.TLS = certificates(t, everybody...)
		}
		startFabric(t, c)
		out := trainCluster(soon(t), t, c, hooks{})
		checkTraining(t, c, out)
		if r := out.server; r.Shares != 3 || r.Harvests > r.Steps || r.Harvests == 0 {
			t.Errorf("%d harvests of %d shares in %d steps", r.Harvests, r.Shares, r.Steps)
		}
	}
}

// Without barriers the sums of a tree are those of training without one.
func TestTreeWithoutSteps(t *testing.T) {
	c := newTree(t)
	c.Data.Synthetic.Rows = 800
	takeNoSteps(t, c)
	c.Faults = cluster.Faults{Loss: 0.01, Seed: 5}
	for i := range c.Switches {
		c.Switches[i].Slots = 200
	}
	startFabric(t, c)
	checkTraining(t, c, trainCluster(soon(t), t, c, hooks{}))
}

// While a tree trains, parents and children are drained and come back. A share whose parent is
// closed is harvested by the server.
func TestPlansOfATreeChangeDuringATraining(t *testing.T) {
	for _, sync := range []bool{true, false} {
		c := newTree(t)
		c.Job.IDs = []uint16{6, 7}
		c.Data.Synthetic.Rows = 6400
		room := 800
		if !sync {
			room = 200
			takeNoSteps(t, c)
		}
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		for i := range c.Switches {
			c.Switches[i].Slots = room
		}
		all, withoutC := planFor(t, c, full("")), planFor(t, c, full("c"))
		for i := range c.Switches {
			c.Switches[i].Slots = 2 * room
		}
		c.Job.Plan = filepath.Join(t.TempDir(), "plan.json")
		if err := os.WriteFile(c.Job.Plan, all, 0o600); err != nil {
			t.Fatal(err)
		}
		startFabric(t, c)
		drain := func(name string) func(*operator) {
			return func(o *operator) {
				if r, err := o.drain(name); err != nil || slices.Contains(r.Plan.GetSwitches(), name) {
					t.Errorf("a drain of %s: %v, %v", name, r, err)
				}
				if left := jobsOf(t, onlySwitch(t, c, name)); len(left) > 0 {
					t.Errorf("sync %v: switch %s may stop, and has the jobs %v", sync, name, left)
				}
			}
		}
		apply := func(plan []byte) func(*operator) {
			return func(o *operator) {
				if r, err := o.apply(0, plan); err != nil {
					t.Errorf("a change of the plan: %v, %v", r, err)
				}
			}
		}
		checkTraining(t, c, during(soon(t), t, c, drain("b"), apply(all), drain("core"), apply(withoutC), apply(all)))
	}
}

// If a share cannot be added to its parent, the server ends with the field, and all shares are
// removed.
func TestParentThatTakesNoChild(t *testing.T) {
	c := newTree(t)
	older := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, call *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler,
	) (any, error) {
		if call.FullMethod == pb.Aggregator_AddChild_FullMethodName {
			return nil, status.Error(codes.Unimplemented, "unknown method AddChild for service libra.control.v1.Aggregator")
		}
		return handle(ctx, req)
	})
	for _, s := range c.Switches {
		on := Machine{}
		if s.Name == "b" {
			on.Server = []grpc.ServerOption{older}
		}
		t.Cleanup(runSwitchOn(t, onlySwitch(t, c, s.Name), testLog(t), on))
	}
	_, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)})
	for _, want := range []string{"share 2 of the hot set (switches[2]: ", `parent "b"`, "run the same version of libra"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the server ends with %v, want %q", err, want)
		}
	}
	checkNoJobs(t, c)
}
