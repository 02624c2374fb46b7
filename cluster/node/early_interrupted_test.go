// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/libra-ina/libra/train"
)

// An asynchronous run that ends while rows are asked for early, with its server or its worker, goes
// on where its checkpoint says, which lacks no more mini-batches than Staleness allows.
func TestRunThatAsksEarlyGoesOn(t *testing.T) {
	for _, accumulate := range []int{1, 3} {
		for _, staleness := range []int{2, 8} {
			t.Run(fmt.Sprint(accumulate, staleness), func(t *testing.T) {
				c := newCluster(t, 1)
				c.Model.Epochs = 2
				c.Job.Sync, c.Job.Harvest, c.Job.Staleness, c.Job.Accumulate = false, 2*time.Millisecond, staleness, accumulate
				startSwitch(t, c)
				var last uint64
				for i, at := range []uint64{3, 2, 4} {
					var reached uint64
					out := trainCluster(t.Context(), t, c, hooks{step: func(_ uint16, p train.Progress, endWorker, endServer func()) {
						reached = p.Steps
						if p.Steps == at {
							endServer()
							if i%2 == 1 {
								endWorker()
							}
						}
					}})
					if out.err() == nil {
						t.Fatal("a run that was ended ends well")
					}
					var p savedProgress
					if _, err := os.Stat(c.Server.Checkpoint); err == nil { // else no report came in time
						_, p = saved(t, c)
					}
					if p.Steps[1] < last || p.Steps[1] > last+reached || p.Steps[1]+uint64(staleness)+1 < last+reached {
						t.Errorf("after %d steps and %d, the checkpoint says %d", last, reached, p.Steps[1])
					}
					last = p.Steps[1]
				}
				out := mustTrain(t, c)
				_, p := saved(t, c)
				if out.workers[0].Steps+last != p.Steps[1] || p.Complete != 2 {
					t.Errorf("%d steps and then %d; %+v", last, out.workers[0].Steps, p)
				}
			})
		}
	}
}
