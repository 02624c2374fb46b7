// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// due determines when a job's harvests are due. A channel is nil if the job does not use that kind
// of harvest.
type due struct {
	period, count   <-chan time.Time
	periods, counts *time.Ticker
	every           time.Duration
}

// newDue starts the tickers. A ticker keeps its phase until a harvest for another reason restarts
// it: handling a tick late does not delay the next.
func newDue(spec *pb.JobSpec) *due {
	d := &due{every: harvestPeriod(spec)}
	if d.every > 0 {
		d.periods = time.NewTicker(d.every)
		d.period = d.periods.C
	}
	if spec.HarvestFrames > 0 {
		d.counts = time.NewTicker(countEvery)
		d.count = d.counts.C
	}
	return d
}

// restartPeriod restarts the period after a harvest for another reason than time.
func (d *due) restartPeriod() {
	if d.periods != nil {
		d.periods.Reset(d.every)
	}
}

func (d *due) stopTicker() {
	if d.periods != nil {
		d.periods.Stop()
	}
	if d.counts != nil {
		d.counts.Stop()
	}
}
