// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/sched"
)

// A cluster may have several switches: one, to which the servers are cabled, and others with a
// cable to it, among which the workers are dealt. The hot set is divided among them by a plan.

// checkSwitches checks a number of switches.
func checkSwitches(n int) error {
	if n < 0 || n > sched.MaxSwitches {
		return fmt.Errorf("--switches %d: it must be from 1 to %d", n, sched.MaxSwitches)
	}
	return nil
}

// addSwitches makes a cluster one with several switches, whose addresses come later.
// tree lets the first one harvest the others.
func addSwitches(c *cluster.Config, n int, tree bool) {
	if n < 2 {
		return
	}
	c.Job.Plan = cluster.PlanAuto
	for i := range n {
		s := cluster.FabricSwitch{Name: "core", Slots: packer.PageSlots}
		if i > 0 {
			s.Name, s.Links = fmt.Sprint("edge", i), []string{"core"}
			if tree {
				s.Parent = "core"
			}
		}
		c.Switches = append(c.Switches, s)
	}
}

// above lists for each switch after the first that to which its cable leads.
func above(c *cluster.Config) []int { return make([]int, max(0, len(c.Switches)-1)) }

// placeOf returns the switches of the servers and of the workers after them; nil: there is only
// one.
func placeOf(c *cluster.Config, servers, workers int) []int {
	if len(c.Switches) == 0 {
		return nil
	}
	at := make([]int, servers)
	for i := range workers {
		at = append(at, 1+i%(len(c.Switches)-1))
	}
	return at
}

// setSwitches says where all hosts are, and fills in what depends on the switches' addresses.
func setSwitches(c *cluster.Config) {
	if len(c.Switches) == 0 {
		return
	}
	servers := len(c.AllServers())
	for i, at := range placeOf(c, servers, len(c.Workers)) {
		name := c.Switches[at].Name
		switch {
		case i >= servers:
			c.Workers[i-servers].At = name
		case len(c.Servers) > 0:
			c.Servers[i].At = name
		default:
			c.Server.At = name
		}
	}
	c.SetDefaults()
}

// switchProcesses lists the processes of all switches: a name, the place of [bed.startOn], and the
// command's arguments.
func switchProcesses(c *cluster.Config) (all []switchProcess) {
	all = append(all, switchProcess{"switch", -1, []string{"switch"}})
	for _, i := range c.MoreSwitches() {
		name := c.Switches[i].Name
		all = append(all, switchProcess{"switch " + name, -1 - i, []string{"switch", "--name", name}})
	}
	return all
}

type switchProcess struct {
	name string
	host int
	args []string
}

// startSwitches starts the switches of a cluster file.
func (g *groups) startSwitches(ctx context.Context, c *cluster.Config, path string) error {
	for _, p := range switchProcesses(c) {
		cmd := g.libraCommand(append(p.args, "--config", path)...)
		if _, err := g.startReady(ctx, "services", p.host, proc.Spec{Name: p.name, Cmd: cmd, Service: true}); err != nil {
			return err
		}
	}
	return nil
}
