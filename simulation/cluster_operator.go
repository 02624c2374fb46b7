// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"time"
)

// Collect processes everything since the last call. All goroutines are blocked.
func (c *clusterLife) Collect() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.conns.Collect()
	for c.moments[byWrites] < c.disk.Writes() {
		c.passMoment(byWrites)
	}
	c.beginFence()
	for _, role := range c.roles {
		p := c.procs[role]
		if p != nil && p.wrong != "" && p.ready && !p.Dead() {
			c.Fail("%s trains, although its %s is not that of the others", p.Name(), p.wrong)
		}
		if p != nil && p.ended {
			delete(c.procs, role)
			c.handleEnd(p)
		}
	}
	c.neighbour.handleEnds()
	for _, p := range c.outside {
		if p.ended && p.err != nil && !c.Over() {
			c.Fail("%v", p.err)
		}
	}
}

// handleEnd is the operator's reaction to a process that has ended by itself, or was killed.
func (c *clusterLife) handleEnd(p *process) {
	if c.Over() {
		return
	}
	c.Tell("%s ends, killed %v, with an error %v\n", p.Name(), p.Dead(), p.err != nil)
	if out := c.LogOf(p.Name()); out != nil && p.err != nil {
		_, _ = fmt.Fprintf(out, "%v\n", p.err)
	}
	again := func() {
		c.After(time.Duration(10+c.Draw(1000))*time.Millisecond, func() { c.startRole(p.role) })
	}
	if p.Dead() {
		again()
	} else if p.err != nil && !c.isExplained(p) {
		c.Fail("%s ends, which %v does not explain: %v", p.Name(), c.happened, p.err)
	}
	switch {
	case isAggregator(p.role):
		switch {
		case p.Dead():
		case !p.stopped || p.err != nil:
			c.Fail("the switch ends: %v", p.err)
		default:
			again()
		}
	case p.role != theServer:
		if p.err == nil && !p.Dead() {
			c.accounts.checkFinished(p)
			if p.serving < c.serving || c.procs[theServer] == nil {
				again() // its server has ended
				return
			}
			c.finished[p.role] = true
			c.done = append(c.done, p)
		} else if !p.Dead() {
			again()
		}
	case p.Dead() || p.err != nil:
		if !p.Dead() {
			c.accounts.checkLeft(p)
		}
		c.done = nil
		clear(c.finished) // the next server continues from its checkpoint, with all workers
		for _, role := range c.roles {
			c.After(time.Duration(10+c.Draw(1000))*time.Millisecond, func() { c.startRole(role) })
		}
	case c.cfg.Job.Sync && p.weights != c.want[c.phase]:
		c.Fail("training of %d epochs ends with the weights %s, not %s", c.epochs[c.phase], p.weights, c.want[c.phase])
	default:
		c.accounts.checkTraining(p.weights, c.done)
		c.accounts.checkLeft(p)
		c.done = nil
		c.completePhase()
	}
}

// completePhase begins the next phase of the training, if there is one.
func (c *clusterLife) completePhase() {
	c.result.Trainings++
	c.phase++
	if c.phase == len(c.epochs) {
		return
	}
	clear(c.finished)
	for _, role := range c.roles {
		if isAggregator(role) {
			continue
		}
		if p := c.procs[role]; p != nil {
			c.killProcess(p, false) // a worker that did not learn of the end
		} else {
			c.After(time.Duration(10+c.Draw(1000))*time.Millisecond, func() { c.startRole(role) })
		}
	}
}
