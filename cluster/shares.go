// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// DefaultReplayMiB is the default of [Job.ReplayMiB].
const DefaultReplayMiB = 16

// HotIDs lists the numbers at the switch of the jobs among which the hot set is divided: that of the job, and
// then IDs.
func (j Job) HotIDs() []uint16 { return append([]uint16{j.ID}, j.IDs...) }

// Shares divides a hot set among the jobs of HotIDs; it is nil if there is only one.
func (j Job) Shares(hot *packer.HotSet) (*share.Division, error) {
	if len(j.IDs) == 0 {
		return nil, nil
	}
	return share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), len(j.HotIDs()))
}

// checkShares checks job.ids, and refuses what a job with several shares cannot do.
func (c *Config) checkShares(v *mistakes) {
	ids := c.Job.HotIDs()
	if len(ids) == 1 {
		return
	}
	for i, id := range ids[1:] {
		switch {
		case id > 255:
			v.add("job.ids[%d]: %d is not in 0..255", i, id)
		case slices.Contains(ids[:1+i], id):
			v.add("job.ids[%d]: %d is the number of another share: give each its own", i, id)
		}
	}
	const several = ", but job.ids divides the hot set: "
	if n := len(ids); n > share.Max {
		v.add("job.ids: with job.id, %d numbers, and a hot set has at most %d shares: leave some out", n, share.Max)
	}
	if !c.Job.Sync {
		v.add("job.sync: false" + several + "set it, since only then a step takes the sums of all shares, or leave job.ids out")
	}
	if n := c.Job.ReplayMiB; n != DefaultReplayMiB {
		v.add("job.replay_mib: %d"+several+"leave it out, since workers keep no log then", n)
	}
	if len(c.Standbys) > 0 {
		v.add("standbys: some are listed" + several + "leave them out, since such a job ends with its aggregator, or leave job.ids out")
	}
	if c.TLS != (TLS{}) {
		v.add("tls: there are certificates" + several + "leave one of them out, since a certificate is for one job")
	}
	if c.Serverless() {
		v.add("job.ids: %v, but the file has no server that could harvest several shares: leave it out", c.Job.IDs)
	}
}
