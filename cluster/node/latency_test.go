// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/train"
)

// timesOf returns the number of times of each operation and part, by peer.
func timesOf(all []telemetry.Summary) map[string]map[string]uint64 {
	counts := map[string]map[string]uint64{}
	for _, s := range all {
		what := s.Op + ", " + s.Part
		if counts[what] == nil {
			counts[what] = map[string]uint64{}
		}
		counts[what][s.Peer] += s.Count
	}
	return counts
}

// Workers, servers and switch measure the frames of a job, all of them with a sample of 1: the
// results have the times, and so have the statistics while the job runs. The weights are those of a
// training without telemetry.
func TestTimesAreInResultsAndStatistics(t *testing.T) {
	c := newCluster(t, 2)
	c.Telemetry.Sample = new(1)
	startSwitch(t, c)
	query := func(address string) (*pb.AggregatorStats, *pb.ServerStats) {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sw, server, err := control.Query(t.Context(), conn)
		if err != nil {
			t.Error(err)
		}
		return sw, server
	}
	var (
		server *pb.ServerStats
		sw     *pb.AggregatorStats
	)
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
		if id == 1 && p.Steps == 5 {
			_, server = query(c.Server.Control.String())
			sw, _ = query(c.Switch.Control.String())
		}
	}})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if out.server.WeightsSHA256 != hash(reference(t, c)) {
		t.Error("the weights are not those of the reference")
	}
	atServer := timesOf(out.server.Latencies)
	for _, w := range out.workers {
		times := timesOf(w.Latencies)
		for what, peer := range map[string]string{
			"hot, total": "aggregator", "cold, total": "server 0", "cold, worker queue": "server 0", "cold, worker process": "server 0",
			"pull, total": "server 0", "push, submit": "all", "push, send": "all", "push, answer": "all",
		} {
			if times[what][peer] == 0 {
				t.Errorf("worker %d has no time of %s: %v", w.Worker, what, times)
			}
		}
		peer := telemetry.Worker(w.Worker).String()
		if n := atServer["cold, server process"][peer]; n < times["cold, total"]["server 0"] || n != atServer["cold, server queue"][peer] {
			t.Errorf("the server has %d times of %s, which has %v", n, peer, times["cold, total"])
		}
	}
	during := timesOf(control.LatencySummaries(server.GetLatencies()))
	if n, total := during["cold, server process"]["worker 1"], atServer["cold, server process"]["worker 1"]; n == 0 || n >= total {
		t.Errorf("%d times during, %d in the end", n, total)
	}
	if len(sw.GetJobs()) != 1 || timesOf(control.LatencySummaries(sw.Jobs[0].Latencies))["hot, aggregator process"]["all"] == 0 {
		t.Errorf("the switch's jobs: %v", sw.GetJobs())
	}
}

// Without telemetry there are no times; with it by default there are.
func TestTelemetryIsOnUnlessTurnedOff(t *testing.T) {
	if n := (cluster.Telemetry{}).OneIn(); n != telemetry.DefaultSample {
		t.Errorf("by default, one of %d frames is measured", n)
	}
	c := newCluster(t, 1)
	c.Telemetry.Sample = new(0)
	startSwitch(t, c)
	out := mustTrain(t, c)
	if out.server.Latencies != nil || out.workers[0].Latencies != nil {
		t.Errorf("%v, %v", out.server.Latencies, out.workers[0].Latencies)
	}
}

// A worker that measures other frames than the server is refused when it joins, and told why.
func TestAnotherSampleIsRefused(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	out := trainCluster(t.Context(), t, c, hooks{change: func(_ uint16, theirs *cluster.Config) { theirs.Telemetry.Sample = new(32) }})
	if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), "telemetry.sample") || !strings.Contains(err.Error(), "32") {
		t.Errorf("%v", err)
	}
}
