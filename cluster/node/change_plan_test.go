// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train"
)

// operator changes the plan of a running job.
type operator struct {
	t *testing.T
	c *cluster.Config
	pb.ParameterServerClient
}

// newOperator reaches the first server of a cluster.
func newOperator(t *testing.T, c *cluster.Config) *operator {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.ServerOf(c.Job.ID), c.AllServers()[0].Control, access.Security{}, eventLimit,
		testLog(t))
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { conn.Close() })
	return &operator{t, c, pb.NewParameterServerClient(conn)}
}

// planFor makes a plan.
func planFor(t *testing.T, c *cluster.Config, o plan.Options) []byte {
	t.Helper()
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan.Make(c, hot, o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// apply applies a plan that is based on one with a version.
func (o *operator) apply(version uint64, report []byte) (*pb.ChangePlanResponse, error) {
	return o.ChangePlan(soon(o.t), &pb.ChangePlanRequest{Job: uint32(o.c.Job.ID), Version: version, Report: report})
}

// drain drains a switch of a plan.
func (o *operator) drain(name string) (*pb.DrainResponse, error) {
	return o.Drain(soon(o.t), &pb.DrainRequest{Job: uint32(o.c.Job.ID), Switch: name})
}

// full makes plans as job.plan: auto does.
func full(without string) plan.Options {
	o := plan.Defaults()
	o.Objective, o.Pushes, o.Without = plan.Room, plan.AutoPushes, without
	return o
}

// during runs changes in the middle of a training. Each is called when two more steps were taken
// than when the one before was over. Each has its share of the training's steps: workers that have
// taken these wait until it is over.
func during(ctx context.Context, t *testing.T, c *cluster.Config, changes ...func(*operator)) outcome {
	t.Helper()
	steps, over := make(chan struct{}, 1), make([]chan struct{}, len(changes))
	for i := range over {
		over[i] = make(chan struct{})
	}
	var taken atomic.Uint64
	go func() {
		var o *operator
		done := 0
		defer func() {
			for _, left := range over[done:] {
				close(left)
			}
		}()
		for i, change := range changes {
			for next := taken.Load() + 2; taken.Load() < next; {
				select {
				case <-steps:
				case <-ctx.Done():
					t.Errorf("no step is taken before change %d", i)
					return
				}
			}
			if o == nil {
				if o = newOperator(t, c); o == nil {
					return
				}
			}
			change(o)
			close(over[i])
			done++
		}
	}()
	last := c.Data.Synthetic.Rows*c.Model.Epochs/len(c.Workers)/c.Model.Batch - 1
	out := trainCluster(ctx, t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
		if id == c.Workers[0].ID {
			taken.Add(1)
			select {
			case steps <- struct{}{}:
			default:
			}
		}
		for i := range over {
			if p.Steps < uint64(last*(i+1)/len(over)) {
				break
			}
			select {
			case <-over[i]:
			case <-ctx.Done():
			}
		}
	}})
	for i := range over {
		<-over[i]
	}
	return out
}

// A training whose plan changes twice, and one of whose switches is drained, ends with the weights
// of one process, bit for bit, though frames are lost: with and without barriers. No change leaves
// a job behind at a switch that has no share any more.
func TestPlanChangesDuringATraining(t *testing.T) {
	for _, sync := range []bool{true, false} {
		c := newFabric(t, 3, 1)
		c.Job.IDs = []uint16{6, 7}
		c.Data.Synthetic.Rows = 1600
		room := 800
		if !sync {
			room = 200
			takeNoSteps(t, c)
		}
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for i := range c.Switches { // in the plans, so that there is more during changes
			c.Switches[i].Slots = room
		}
		all, withoutB := planFor(t, c, full("")), planFor(t, c, full("b"))
		for i := range c.Switches {
			c.Switches[i].Slots = 2 * room
		}
		c.Job.Plan = filepath.Join(t.TempDir(), "plan.json")
		if err := os.WriteFile(c.Job.Plan, all, 0o600); err != nil {
			t.Fatal(err)
		}
		startFabric(t, c)
		empty := func(name string) {
			if left := jobsOf(t, onlySwitch(t, c, name)); len(left) > 0 {
				t.Errorf("sync %v: switch %s may stop, and has the jobs %v", sync, name, left)
			}
		}
		out := during(soon(t), t, c,
			func(o *operator) {
				if r, err := o.apply(1, withoutB); err != nil || r.Version != 2 || slices.Contains(r.Switches, "b") {
					t.Errorf("a plan without b: %v, %v", r, err)
				}
				empty("b")
				if _, err := o.apply(1, all); err == nil || !strings.Contains(err.Error(), "stale plan") {
					t.Errorf("a plan that is based on an older one: %v", err)
				}
			},
			func(o *operator) {
				r, err := o.drain("c")
				if err != nil || r.Plan.GetVersion() != 3 || slices.Contains(r.Plan.GetSwitches(), "c") {
					t.Errorf("a drain of c: %v, %v", r, err)
				}
				empty("c")
				if r, err := o.drain("c"); err != nil || r.Plan.GetVersion() != 3 {
					t.Errorf("another drain of c: %v, %v", r, err)
				}
			},
			func(o *operator) {
				if r, err := o.apply(0, all); err != nil || r.Version != 4 || len(r.Switches) < 3 {
					t.Errorf("a plan of all switches: %v, %v", r, err)
				}
			})
		checkFabric(t, c, out, fmt.Sprintf("sync %v", sync))
	}
}

// What cannot be changed is refused with the reason before anything changes.
func TestRefusedChangesOfAPlan(t *testing.T) {
	c := newFabric(t, 2, 1)
	c.Data.Synthetic.Rows = 1200
	usePlan(t, c, 4)
	all := planFor(t, c, full(""))
	startFabric(t, c)
	var other plan.Report
	if err := json.Unmarshal(all, &other); err != nil {
		t.Fatal(err)
	}
	other.HotSet = "00"
	foreign, err := json.Marshal(&other)
	if err != nil {
		t.Fatal(err)
	}
	out := during(soon(t), t, c, func(o *operator) {
		for want, r := range map[string][]byte{
			"the plan is not what 'libra plan --json' prints":    []byte("?"),
			"hot_set: the plan is for another hot set":           foreign,
			"job.ids: []: shares have all numbers of the job at": all,
		} {
			if _, err := o.apply(0, r); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		for name, want := range map[string]string{"": "name the switch that it is to leave", "x": "none of the switches"} {
			if _, err := o.drain(name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("a drain of %q: %v, want %q", name, err, want)
			}
		}
		for _, s := range c.Switches {
			if jobs := jobsOf(t, onlySwitch(t, c, s.Name)); len(jobs) != 1 {
				t.Errorf("switch %s has the jobs %v", s.Name, jobs)
			}
		}
		// Without another number, the other switch does not take what it has: that is cold.
		if r, err := o.drain("core"); err != nil || !slices.Equal(r.Plan.GetSwitches(), []string{"b"}) ||
			!strings.Contains(r.Reason, "parts are cold now") {
			t.Errorf("a drain of core: %v, %v", r, err)
		}
		if r, err := o.drain("b"); err != nil || !slices.Equal(r.Plan.GetSwitches(), []string{"core"}) || r.Reason != "" {
			t.Errorf("a drain of b: %v, %v", r, err)
		}
	})
	checkFabric(t, c, out, "after refusals")
}
