// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/plan"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
)

// newFabric is newCluster with some switches in a row: core, at which the servers are, and others,
// each with a worker.
func newFabric(t *testing.T, switches, servers int) *cluster.Config {
	t.Helper()
	c := newCluster(t, switches)
	if servers > 1 {
		shard(t, c, servers)
	}
	c.Job.Plan = cluster.PlanAuto
	c.Switches = []cluster.FabricSwitch{{Name: "core", Address: c.Switch.Address, Slots: 800}}
	c.Server.At, c.Workers[0].At = "core", "core"
	for i := range c.Servers {
		c.Server = cluster.Server{}
		c.Servers[i].At = "core"
	}
	at := c.Switch.Address.As4()
	for i := 1; i < switches; i++ {
		at[3] = byte(200 + i)
		s := cluster.FabricSwitch{Name: string(rune('a' + i)), Address: netip.AddrFrom4(at), Slots: 800,
			Links: []string{c.Switches[i-1].Name}}
		s.Control = netip.AddrPortFrom(s.Address, freePort(t, s.Address))
		c.Switches = append(c.Switches, s)
		c.Workers[i].At = s.Name
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// startFabric runs all switches until the test ends.
func startFabric(t *testing.T, c *cluster.Config) {
	t.Helper()
	for _, s := range c.Switches {
		startSwitch(t, onlySwitch(t, c, s.Name))
	}
}

func onlySwitch(t *testing.T, c *cluster.Config, name string) *cluster.Config {
	t.Helper()
	own, err := c.ForSwitch(name)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// usePlan makes the job follow a plan for many pushes, from a file.
func usePlan(t *testing.T, c *cluster.Config, pushes int) *plan.Report {
	t.Helper()
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	o := plan.Defaults()
	o.Pushes = pushes
	r, err := plan.Make(c, hot, o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	c.Job.Plan = filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(c.Job.Plan, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// A training whose hot set is divided among switches ends with the weights of one process, bit for
// bit, though frames are lost, whether or not parts stay cold; and each switch sums what the plan
// says, and has no job then.
func TestSwitchesTrainToTheSameWeights(t *testing.T) {
	for name, pushes := range map[string]int{"as there is room": 0, "some are cold": 4} {
		c := newFabric(t, 3, 1)
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		c.Switch.LaneAligned = pushes > 0
		if pushes > 0 {
			usePlan(t, c, pushes)
		}
		startFabric(t, c)
		checkFabric(t, c, trainCluster(soon(t), t, c, hooks{}), name)
	}
}

// checkFabric checks that a training has ended with the weights of one process, that the switches
// have summed all that workers have sent them, and that they have no jobs any more.
func checkFabric(t *testing.T, c *cluster.Config, out outcome, name string) {
	t.Helper()
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if want := hash(reference(t, c)); out.server.WeightsSHA256 != want {
		t.Errorf("%s: the weights are %s, those of one process %s", name, out.server.WeightsSHA256, want)
	}
	var sent uint64
	for _, w := range out.workers {
		sent += w.HotPairs
	}
	if out.server.HotPairs != sent || sent == 0 {
		t.Errorf("%s: the switches have summed %d pairs, the workers have sent %d", name, out.server.HotPairs, sent)
	}
	checkNoJobs(t, c)
}

// Rows of the hot set that stay cold go to the first of several servers, coded or not, and by their
// numbers.
func TestSwitchesAndServers(t *testing.T) {
	for _, bound := range []*int{nil, new(8)} {
		c := newFabric(t, 2, 2)
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		c.Codec.Bound = bound
		cold := func(p plan.Part) bool { return len(p.Switches) == 0 }
		if r := usePlan(t, c, 4); !slices.ContainsFunc(r.Parts, cold) {
			t.Fatal("no part is cold")
		}
		startFabric(t, c)
		out := trainSharded(soon(t), t, c, nil, nil)
		if err := errors.Join(out.errs...); err != nil {
			t.Fatal(err)
		}
		if want, got := reference(t, c), merged(t, c); hash(got) != hash(want) || got.Len() != want.Len() {
			t.Errorf("%d rows with weights %s, in one process %d with %s", got.Len(), hash(got), want.Len(), hash(want))
		}
		if out.servers[0].HotPairs == 0 {
			t.Error("the switches have summed nothing")
		}
		checkNoJobs(t, c)
	}
}

func checkNoJobs(t *testing.T, c *cluster.Config) {
	t.Helper()
	for _, s := range c.Switches {
		if left := jobsOf(t, onlySwitch(t, c, s.Name)); len(left) > 0 {
			t.Errorf("jobs stay at %s: %v", s.Name, left)
		}
	}
}

// If a switch cannot take its share, the server ends with its field, and the shares before it are
// removed.
func TestSwitchThatTakesNoShare(t *testing.T) {
	c := newFabric(t, 2, 1)
	usePlan(t, c, 50)
	c.Switches[1].Slots = 30
	startSwitch(t, onlySwitch(t, c, "core"))
	startSwitch(t, onlySwitch(t, c, "b"))
	c.Switches[1].Slots = 800
	_, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "share 1 of the hot set (switches[1]: ") ||
		!strings.Contains(err.Error(), "slots") {
		t.Errorf("the server ends with %v", err)
	}
	checkNoJobs(t, c)
}

// Switches know the server and the workers by their certificates, and these the switches. If the
// server cannot talk to one of them, it ends with its field, and no other has got a job.
func TestSwitchesWithCertificates(t *testing.T) {
	c := newFabric(t, 2, 1)
	everybody := []netip.Addr{c.Switches[0].Address, c.Switches[1].Address, c.Server.Address}
	for _, w := range c.Workers {
		everybody = append(everybody, w.Address)
	}
	c.TLS = certificates(t, everybody...)
	var created atomic.Int32
	counts := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, call *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler,
	) (any, error) {
		if call.FullMethod == pb.Aggregator_CreateJob_FullMethodName {
			created.Add(1)
		}
		return handle(ctx, req)
	})
	t.Cleanup(runSwitchOn(t, onlySwitch(t, c, "core"), testLog(t), Machine{Server: []grpc.ServerOption{counts}}))
	stranger := onlySwitch(t, c, "b")
	stranger.TLS = certificates(t, everybody...) // of another authority
	stop := runSwitch(t, stranger, testLog(t))
	_, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "share 1 of the hot set (switches[1]: ") ||
		!strings.Contains(err.Error(), "TLS mismatch") || created.Load() > 0 {
		t.Errorf("the server ends with %v, and has created %d jobs", err, created.Load())
	}
	stop()
	startSwitch(t, onlySwitch(t, c, "b"))
	out := trainCluster(soon(t), t, c, hooks{})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if want := hash(reference(t, c)); out.server.WeightsSHA256 != want || created.Load() != 1 {
		t.Errorf("the weights are %s, those of one process %s", out.server.WeightsSHA256, want)
	}
}
