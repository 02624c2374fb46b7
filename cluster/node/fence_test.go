// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/train"
)

// serve completes a configuration of a training, in step or not, with one or more servers.
func serve(t *testing.T, c *cluster.Config, inStep bool, servers int) {
	t.Helper()
	if !inStep {
		c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	}
	if servers > 1 {
		shard(t, c, servers)
	} else {
		c.Servers = append(c.Servers, c.Server)
	}
	c.SetDefaults()
}

// A training whose switch ends goes on without it, with barriers and without, with one server and
// with two: with barriers to the weights of one process, bit for bit.
func TestLossOfTheSwitchEndsNothing(t *testing.T) {
	for _, sync := range []bool{true, false} {
		for _, servers := range []int{1, 2} {
			t.Run(fmt.Sprintf("sync %v, %d servers", sync, servers), func(t *testing.T) {
				c := newCluster(t, 2)
				serve(t, c, sync, servers)
				stop := runSwitch(t, c, testLog(t))
				stopped := false
				out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, _ []func()) {
					if p.Steps == 5 && !stopped {
						stopped = true
						stop()
					}
				})
				if !stopped {
					stop()
				}
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				if !stopped {
					t.Error("the switch has not ended meanwhile")
				}
				want, got := reference(t, c), merged(t, c)
				if sync && hash(got) != hash(want) {
					t.Errorf("weights %s, in one process %s", hash(got), hash(want))
				}
				if got.Len() != want.Len() {
					t.Errorf("%d rows, in one process %d", got.Len(), want.Len())
				}
			})
		}
	}
}
