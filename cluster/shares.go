// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// DefaultReplayMiB is the default of [Job.ReplayMiB].
const DefaultReplayMiB = 16

// HotIDs lists the numbers at switches of the jobs among which the hot set is divided: that of the
// job, and then IDs. With Plan, these are for shares at a switch that has one already.
func (j Job) HotIDs() []uint16 { return append([]uint16{j.ID}, j.IDs...) }

// Shares divides a hot set among the jobs of HotIDs; it is nil if there is only one.
func (j Job) Shares(hot *packer.HotSet) (*share.Division, error) {
	if len(j.IDs) == 0 {
		return nil, nil
	}
	return share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), len(j.HotIDs()))
}

// PlanAuto is the plan that server 0 makes at its start.
const PlanAuto = "auto"

// HasShares reports whether the hot set is divided among several jobs.
func (j Job) HasShares() bool { return len(j.IDs) > 0 || j.Plan != "" }

// checkShares checks job.ids and job.plan, and refuses what a job with several shares cannot do.
func (c *Config) checkShares(v *mistakes) {
	if !c.Job.HasShares() {
		return
	}
	by := "job.ids"
	if c.Job.Plan != "" {
		by = "job.plan"
		c.checkPlan(v)
	}
	ids := c.Job.HotIDs()
	for i, id := range ids[1:] {
		switch {
		case id > 255:
			v.addMistake("job.ids[%d]: %d is not in 0..255", i, id)
		case slices.Contains(ids[:1+i], id):
			v.addMistake("job.ids[%d]: %d is the number of another share: give each its own", i, id)
		}
	}
	const several = ", but %s divides the hot set: "
	if n := len(ids); n > share.Max {
		v.addMistake("job.ids: with job.id, %d numbers, and a hot set has at most %d shares: leave some out", n, share.Max)
	}
	if n := c.Job.HarvestFrames; n != 0 {
		v.addMistake("job.harvest_frames: %d"+several+"leave it out, since the server harvests all shares at once, by job.harvest", n, by)
	}
	if n := c.Job.ReplayMiB; n != DefaultReplayMiB {
		v.addMistake("job.replay_mib: %d"+several+"leave it out, since workers keep no log then", n, by)
	}
	if len(c.Standbys) > 0 {
		v.addMistake("standbys: some are listed"+several+"leave them out, since such a job ends with its aggregator, or leave %[1]s out", by)
	}
	if c.TLS != (TLS{}) && len(c.Job.IDs) > 0 { // otherwise all shares have the number of the job
		v.addMistake("tls: there are certificates, but job.ids divides the hot set: leave one of them out, since a certificate is for one job")
	}
	if c.Serverless() {
		v.addMistake("%s: the hot set is divided, but the file has no server that could harvest several shares: leave it out", by)
	}
}

// checkPlan checks what job.plan needs.
func (c *Config) checkPlan(v *mistakes) {
	if c.Switch.Plane == PlaneP4 {
		v.addMistake("job.plan: %s, but the other switches of a P4 switch would have no program: leave it out, or choose plane xdp", c.Job.Plan)
	}
	if len(c.Switches) == 0 {
		v.addMistake("job.plan: %s, but the file lists no switches: list all of them with their links, or leave it out", c.Job.Plan)
	}
	for i, s := range c.Switches {
		field := fmt.Sprintf("switches[%d]", i)
		if !s.Plain && !c.isOwn(s) && !s.Control.IsValid() {
			v.addMistake("%s.control: required with job.plan: give the TCP address of its daemon, or let it be plain", field)
		}
	}
}
