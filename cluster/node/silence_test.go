// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/train"
)

// suspendedPlane is a data plane that lives on without its daemon, as an XDP program does: what the
// daemon asks it has no answer until it goes on.
type suspendedPlane struct {
	aggregator.Plane
	mu   sync.Mutex
	wait chan struct{} // closed when the daemon goes on
}

func (p *suspendedPlane) suspend() (resume func()) {
	until := make(chan struct{})
	p.mu.Lock()
	p.wait = until
	p.mu.Unlock()
	return func() { close(until) }
}

func (p *suspendedPlane) JobCounters(job uint16) (aggregator.JobCounters, error) {
	p.mu.Lock()
	until := p.wait
	p.mu.Unlock()
	if until != nil {
		<-until
	}
	return p.Plane.JobCounters(job)
}

// A training whose switch daemon is suspended, while its data plane acknowledges frames, goes on
// without it, at a standby or with hot rows at the server: with barriers to the weights of one
// process.
func TestSuspendedDaemonEndsNothing(t *testing.T) {
	t.Parallel()
	for _, inStep := range []bool{true, false} {
		for standbys := range 2 {
			t.Run(fmt.Sprintf("sync %v, %d standbys", inStep, standbys), func(t *testing.T) {
				c := newCluster(t, 2)
				addStandbys(t, c, standbys)
				c.Servers = append(c.Servers, c.Server)
				c.Switch.Silence = control.MinSilence
				if !inStep {
					c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
				}
				c.SetDefaults()
				plane := &suspendedPlane{}
				stop := runSwitchOn(t, c, testLog(t), Machine{Plane: func(p aggregator.Plane) aggregator.Plane {
					plane.Plane = p
					return plane
				}})
				if standbys > 0 {
					_, stopStandby := runAggregator(t, c, 1)
					defer stopStandby()
				}
				var once sync.Once
				resume := func() {}
				out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, _ []func()) {
					if p.Steps == 5 {
						once.Do(func() { resume = plane.suspend() })
					}
				})
				resume()
				stop()
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				want, got := reference(t, c), merged(t, c)
				if inStep && hash(got) != hash(want) {
					t.Errorf("weights %s, in one process %s", hash(got), hash(want))
				}
				if got.Len() != want.Len() {
					t.Errorf("%d rows, in one process %d", got.Len(), want.Len())
				}
			})
		}
	}
}
