// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
)

// What a control service sends of its times has the same summary at the reader as at the sender.
func TestLatenciesTravel(t *testing.T) {
	r := telemetry.NewRecorder(1, nil, nil)
	for i := range 1000 {
		r.Time(telemetry.Key{Op: telemetry.Cold, Part: telemetry.ServerQueue, Peer: telemetry.Worker(3)}, time.Duration(i*i))
		r.Time(telemetry.Key{Op: telemetry.Pull, Part: telemetry.ServerProcess, Peer: telemetry.Others}, time.Second)
	}
	wire, err := proto.Marshal(&pb.ServerStats{Latencies: LatencyMessages(r.Series())})
	if err != nil {
		t.Fatal(err)
	}
	var stats pb.ServerStats
	if err := proto.Unmarshal(wire, &stats); err != nil {
		t.Fatal(err)
	}
	want, got := telemetry.Summaries(r.Series()), LatencySummaries(stats.Latencies)
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 2 {
		t.Errorf("(-sent +read):\n%s", diff)
	}
	if s := got[0]; s.Op != "cold" || s.Part != "server queue" || s.Peer != "worker 3" || s.Count != 1000 || s.P50 < 220_000 || s.P50 > 275_000 {
		t.Errorf("%+v", s)
	}
	if LatencyMessages(nil) != nil || LatencySummaries(nil) != nil {
		t.Error("no times are some")
	}
}

// A message from elsewhere with nonsense in it makes no reader fail.
func TestStrangeLatenciesAreRead(t *testing.T) {
	for _, m := range []*pb.Latency{{}, {First: 1 << 30, Counts: []uint64{1}}, {First: -1 << 30, Counts: []uint64{0, 1 << 63, 1 << 63}}, {Zeros: 5}} {
		if got := LatencySummaries([]*pb.Latency{m}); len(got) != 1 {
			t.Errorf("%v: %v", m, got)
		}
	}
}
