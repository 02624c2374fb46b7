// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/simulation/world"
)

// planTrouble plans the trouble of a cluster, and its end.
func (c *clusterLife) planTrouble() {
	p, rng := &c.plan, c.options.random(streamTrouble)
	roles := c.roles
	hosts := make([]*world.Host, len(roles))
	for i, role := range roles {
		hosts[i] = c.hostOf(c.addressOf(role))
	}
	for n := range 1 + rng.IntN(most-1) {
		at := time.Duration(float64(p.trouble) * rng.Float64())
		clock, moment := rng.IntN(3), rng.IntN(1+rng.IntN(1500))
		if early := time.Duration(rng.IntN(200)) * time.Millisecond; rng.IntN(3) > 0 {
			at = min(at, early) // most trainings are shorter
		}
		lasts := time.Duration(float64(time.Millisecond) * portable.Pow(15_000, rng.Float64()))
		x, y := rng.IntN(len(hosts)), rng.IntN(len(hosts))
		if rng := c.options.named(fmt.Sprintf("trouble %d", n)); rng.IntN(4) == 0 {
			clock, moment, x = byWrites, rng.IntN(100), slices.Index(roles, theServer)
		}
		which, how := rng.IntN(64), rng.IntN(3)
		kind := [...]Kinds{Partition, Pause, Crash, Reset, Power, Stop}[rng.IntN(6)]
		if p.kinds&kind == 0 || slices.Contains(c.options.Cut.Without, n) {
			continue
		}
		a, b := hosts[x], hosts[y]
		begin := func() {
			if c.Healed() {
				return
			}
			if kind != Reset {
				c.happened |= kind
			}
			c.Tell("%v of %s and %s\n", kind, a.Name(), b.Name())
			switch kind {
			case Partition:
				c.Net.Partition(a, b)
				c.After(lasts, func() { c.Net.Rejoin(a, b) })
			case Pause:
				c.result.Pauses++
				a.Pause()
				c.paused = append(c.paused, a)
				c.After(lasts, a.Resume)
			case Reset:
				c.conns.Break(world.Breakage{Which: which, How: how})
			case Stop:
				c.stopRole(roles[x])
			case Crash, Power:
				c.crashRole(roles[x], kind == Power)
			}
		}
		switch {
		case clock == byTime:
			c.After(at, begin)
		case clock == byMessages && kind == Reset:
			c.breaks[moment] = world.Breakage{Which: which, How: how}
		default:
			c.planned[clock] = append(c.planned[clock], planned{moment, begin})
		}
	}
	c.planStrangers(hosts)
	c.planOutages(hosts)
	c.planFence()
	c.planStandbys()
	c.planDrains()
	c.planRewinds()
	c.After(c.plan.trouble, c.Heal)
}

// stopRole tells a process to end, and checks that it does.
func (c *clusterLife) stopRole(role string) {
	victim := c.procs[role]
	if victim == nil {
		return
	}
	c.result.Stops++
	victim.stopped = true
	victim.cancel()
	c.After(stopLimit, func() {
		if c.procs[role] == victim && !victim.Dead() && !victim.Host().Paused() {
			c.Fail("%s was told to end %v ago, and does not: %s", victim.Name(), stopLimit, c.State())
		}
	})
}

// crashRole kills a process; with power its machine loses power.
func (c *clusterLife) crashRole(role string, power bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if power && role == theServer {
		c.disk.LosePower()
	}
	if victim := c.procs[role]; victim != nil && !victim.Dead() {
		c.killProcess(victim, power)
		if power {
			c.result.PowerLosses++
		}
		c.result.Kills++
	}
}

// Trouble is planned by time, by the number of frames or control messages sent, or by the server's
// disk writes.
const (
	byFrames = iota
	byMessages
	byTime
	byWrites
	clocks // number of them
)

type planned struct {
	moment int
	begin  func()
}

// passMoment counts an event, and starts the trouble that is planned for it.
func (c *clusterLife) passMoment(clock int) {
	c.moments[clock]++
	for _, p := range c.planned[clock] {
		if p.moment == c.moments[clock] {
			c.After(0, p.begin)
		}
	}
}
