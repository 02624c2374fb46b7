// SPDX-License-Identifier: Apache-2.0

package simulation

import "slices"

// fencePlan is when the switch vanishes or is told to end: when an event has occurred so often.
type fencePlan struct {
	on    int // the event
	at    int // 0: never, or the fence has begun
	count [fenceEvents]int
	begin func()
}

// Events other than frames: a bank is swapped, so that its harvest is on its way, or a worker
// reports that it has finished, while others train.
const (
	swaps = iota
	dones
	fenceEvents
)

// countEvent counts an event. The caller holds the lock.
func (f *fencePlan) countEvent(event int) { f.count[event]++ }

// beginFence begins the fence if it is due. The caller holds the lock.
func (c *clusterLife) beginFence() {
	if f := &c.fence; f.at > 0 && f.count[f.on] >= f.at {
		f.at = 0
		c.After(0, f.begin)
	}
}

// noteFence notes that an aggregator ends. That explains the end of a process only if a worker has
// not joined yet, or keeps no log.
func (c *clusterLife) noteFence() {
	joining := func(role string) bool {
		other := isAggregator(role) && role != theSwitch
		return !other && !c.finished[role] && (c.procs[role] == nil || !c.procs[role].ready)
	}
	if c.guest != 0 || slices.ContainsFunc(c.roles, joining) {
		c.happened |= Crash
	}
}

// planFence plans that the switch vanishes or is told to end in the middle of a training, in one
// life of four, or in all if it is the only kind. The server notices the latter at once.
func (c *clusterLife) planFence() {
	rng := c.options.named("fence")
	some := rng.IntN(4) == 0 || c.options.Kinds == Fence
	if c.options.Kinds&Fence == 0 || !some {
		return
	}
	c.delayServer()
	moment, told := 1+rng.IntN(1+rng.IntN(600)), rng.IntN(2) == 0
	begin := func() {
		if c.Healed() {
			return
		}
		c.noteFence()
		c.Tell("fence\n")
		if told {
			c.stopRole(theSwitch)
		} else {
			c.crashRole(theSwitch, false)
		}
	}
	switch rng.IntN(4) {
	case 0:
		c.fence = fencePlan{on: swaps, at: 1 + rng.IntN(1+rng.IntN(100)), begin: begin}
	case 1:
		c.fence = fencePlan{on: dones, at: 1 + rng.IntN(len(c.cfg.Workers)), begin: begin}
	default:
		c.planned[byFrames] = append(c.planned[byFrames], planned{moment, begin})
	}
}
