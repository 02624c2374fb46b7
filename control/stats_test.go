// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// blind is a data plane that does not report its counters, or has lost a job.
type blind struct {
	*aggregator.Model
	err  error
	lost uint16 // the job
	why  error  // why it tells nothing of that
}

func (b *blind) Counters() (aggregator.Counters, error) {
	if b.err != nil {
		return aggregator.Counters{}, b.err
	}
	return b.Model.Counters()
}

func (b *blind) JobCounters(id uint16) (aggregator.JobCounters, error) {
	if id == b.lost {
		return aggregator.JobCounters{}, b.why
	}
	return b.Model.JobCounters(id)
}

// A job that the data plane no longer has is left out, whichever it is, and the others are not.
func TestStatsWithoutAJobThatGoes(t *testing.T) {
	plane := &blind{why: aggregator.ErrNoJob}
	l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
	for id := range uint32(4) {
		s := spec()
		s.Job = 1 + id
		l.create(t, s)
	}
	for plane.lost = 1; plane.lost <= 4; plane.lost++ {
		for range 5 { // the service looks at them in any order
			if n := len(l.stats(t).Jobs); n != 3 {
				t.Errorf("without job %d: %d jobs, want 3", plane.lost, n)
			}
		}
	}
	plane.lost, plane.why = 1, aggregator.ErrBusy
	_, err := l.client.Stats(t.Context(), &pb.StatsRequest{})
	wants(t, "a data plane without a job's counters", err, codes.Unavailable)
	plane.lost, plane.err = 0, aggregator.ErrBusy
	_, err = l.client.Stats(t.Context(), &pb.StatsRequest{})
	wants(t, "a data plane without counters", err, codes.Unavailable)
}
