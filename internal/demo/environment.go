// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"runtime"
	"strconv"

	"github.com/libra-ina/libra/internal/cluster"
)

// processors is the variable that bounds how many threads of a Go program run at a time.
const processors = "GOMAXPROCS"

// environment returns that of the child on a host, which is as in bed.start. All of a demo's
// processes share one machine, so each gets its share of the processors: threads that
// wait for work on the others take them from processes that have some.
//
// A process with an endpoint that takes requests keeps them all, unless the user has said otherwise:
// under load that endpoint seldom sleeps, and with a single thread its harvests wait for it.
func (r *run) environment(host int) []string {
	env := os.Environ()
	takesRequests := host == serverHost || host == switchHost && r.config.Switch.Plane == cluster.PlaneModel
	if _, set := os.LookupEnv(processors); set || takesRequests {
		return env
	}
	processes := r.options.Workers + 2
	return append(env, processors+"="+strconv.Itoa(max(1, runtime.GOMAXPROCS(0)/processes)))
}
