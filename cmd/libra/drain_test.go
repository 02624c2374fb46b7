// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// What a drain prints says where the job is now, and why it is not elsewhere.
func TestDrained(t *testing.T) {
	at := func(last byte) cluster.Standby {
		return cluster.Standby{Address: netip.AddrFrom4([4]byte{10, 0, 0, last})}
	}
	c := &cluster.Config{Standbys: []cluster.Standby{at(8), at(9)}}
	c.Switch.Address, c.Job.ID = netip.MustParseAddr("10.0.0.1"), 7
	const left = "job 7 has left the switch at 10.0.0.1, which may be stopped: "
	for _, test := range []struct {
		to     *uint32
		reason string
		want   string
	}{
		{new(uint32(2)), "", left + "it goes on at standby 1 at 10.0.0.9"},
		{new(uint32(1)), "aggregator at 10.0.0.9:7700: no", left + "it goes on at standby 0 at 10.0.0.8. Others do not take it: aggregator at 10.0.0.9:7700: no"},
		{nil, "aggregator at 10.0.0.9:7700: no", left + "hot rows go to the parameter server, until an aggregator takes the job. The others do not: aggregator at 10.0.0.9:7700: no"},
		{nil, "", left + "hot rows go to the parameter server, as the cluster file has no standbys"},
	} {
		if said := drained(c, &pb.DrainResponse{To: test.to, Reason: test.reason}); said != test.want {
			t.Errorf("it prints %q, not %q", said, test.want)
		}
	}
}
