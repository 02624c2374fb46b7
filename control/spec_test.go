// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Specifications are tested at the ends of their ranges; beyond them, the error has the value and
// the range.
func TestEndsOfSpecifications(t *testing.T) {
	a := &Aggregator{cfg: AggregatorConfig{Plane: new(aggregator.Model), Stripes: 10, Dense: true}}
	rounds := func(s *pb.JobSpec) { s.Mode, s.Workers = pb.Mode_MODE_SYNC, 2 }
	macs := func(n int) [][]byte { return slices.Repeat([][]byte{{2, 0, 0, 0, 0, 1}}, n) }
	for _, c := range []struct {
		last, beyond func(*pb.JobSpec)
		want         string
	}{
		{func(s *pb.JobSpec) { s.Job = 255 }, func(s *pb.JobSpec) { s.Job = 256 }, "job 256: ids end at 255"},
		{func(s *pb.JobSpec) { rounds(s); s.Workers = aggregator.MaxWorkers }, func(s *pb.JobSpec) { rounds(s); s.Workers = aggregator.MaxWorkers + 1 }, "can take part in rounds"},
		{func(s *pb.JobSpec) { s.Stripes = 10 }, func(s *pb.JobSpec) { s.Stripes = 11 }, "stripes: 11, this aggregator takes at most 10 in a frame"},
		{func(s *pb.JobSpec) { rounds(s); s.Senders = 2 }, func(s *pb.JobSpec) { rounds(s); s.Senders = 1 }, "senders: 1, but 2 workers take part in rounds"},
		{func(s *pb.JobSpec) { s.ServerMacs = macs(maxHosts) }, func(s *pb.JobSpec) { s.ServerMacs = macs(maxHosts + 1) }, "server_macs: 48, a job has at most 47 servers and other switches"},
	} {
		last, beyond := spec(), spec()
		c.last(last)
		c.beyond(beyond)
		if _, err := a.jobConfig(last); err != nil {
			t.Errorf("%v: %v", last, err)
		}
		if _, err := a.jobConfig(beyond); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// A job accepts lane-aligned frames always, and dense ones if the aggregator does and there are no
// rounds.
func TestLayoutsOfJobs(t *testing.T) {
	for _, dense := range []bool{false, true} {
		for _, mode := range []pb.Mode{pb.Mode_MODE_COMBINE, pb.Mode_MODE_SYNC, pb.Mode_MODE_ACKED} {
			a := &Aggregator{cfg: AggregatorConfig{Plane: new(aggregator.Model), Stripes: 10, Dense: dense}}
			s := spec()
			if s.Mode = mode; mode != pb.Mode_MODE_COMBINE {
				s.Workers = 2
			}
			want := aggregator.Aligned
			if dense && mode == pb.Mode_MODE_COMBINE {
				want |= aggregator.Dense
			}
			if cfg, err := a.jobConfig(s); err != nil || cfg.Layouts != want {
				t.Errorf("dense %v, %v: layouts %v, want %v; %v", dense, mode, cfg.Layouts, want, err)
			}
		}
	}
}
