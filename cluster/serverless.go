// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"reflect"

	"github.com/libra-ina/libra/aggregator"
)

// Serverless reports whether the file describes jobs without a parameter server: it has neither
// servers nor model nor data. They belong to clients of agents, and Job.ID is the number of the
// first; or to the workers of 'libra glm', which need no hot set.
func (c *Config) Serverless() bool {
	return len(c.Servers) == 0 && reflect.ValueOf(c.Server).IsZero() && reflect.ValueOf(c.Model).IsZero() &&
		reflect.ValueOf(c.Data).IsZero()
}

// errServerless refuses such a file where a parameter server is needed.
var errServerless = errors.New("server: there is none, nor a model or data: only the switch, libra glm, and agents whose file lists workers for it, take such a file: add server, model and data")

// checkServerless checks what is different in a file without a parameter server.
func (c *Config) checkServerless(v *mistakes) {
	const without = ", but the file has no server, and so describes jobs whose owners take the sums: "
	if c.Job.Sync {
		v.addMistake("job.sync: true" + without + "leave it out, or give the file a server, a model and data")
	}
	if n := c.Job.HarvestFrames; n != 0 {
		v.addMistake("job.harvest_frames: %d"+without+"leave it out, since an owner asks for each harvest", n)
	}
	if a := c.Job.Arithmetic; a != aggregator.Exact.String() {
		v.addMistake("job.arithmetic: %q"+without+"leave it out, since these jobs have exact arithmetic", a)
	}
}
