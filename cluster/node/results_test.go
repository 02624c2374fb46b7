// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/transport"
)

// Each counter of a worker's links and training has its place in the result.
func TestWorkerResult(t *testing.T) {
	half := 0.5
	loss := data.Loss{LogLoss: &half}
	got := workerResult(3, "udp",
		train.Result{Progress: train.Progress{Samples: 1, Steps: 2, Loss: loss}, Elapsed: 4},
		transport.WorkerStats{
			PairsHot: 5, RowsCold: 6, LogWaits: 13, Settled: 14, BytesCold: 15, CodedValues: 24, CodedBytes: 20,
			Hot:  retransmit.Stats{Sent: 100, Retransmitted: 7, SRTT: 8},
			Cold: retransmit.Stats{Sent: 20, Retransmitted: 30, SRTT: 9},
			Link: link.Stats{Dropped: 10, Duplicated: 11, Reordered: 12},
		}, 4)
	want := &WorkerResult{
		Worker: 3, Backend: "udp", Samples: 1, Steps: 2, Loss: loss, Elapsed: 4,
		HotPairs: 5, ColdPairs: 24, Frames: 120, HotFrames: 100, Retransmissions: 37, RTTHot: 8, RTTCold: 9,
		Dropped: 10, Duplicated: 11, Reordered: 12,
		LogWaits: 13, Settled: 14, ColdBytes: 15, SavedBytes: 76,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What the server counts is what the workers sent, and what it reports while training
// grows to what it returns.
func TestResultsAddUp(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	conn, err := grpc.NewClient("passthrough:///"+c.Server.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var during *pb.ServerStats
	var at uint64
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
		if id == 1 && p.Steps == 5 {
			// The other worker may be at this barrier, and no further.
			if during, err = pb.NewParameterServerClient(conn).Stats(t.Context(), &pb.StatsRequest{}); err != nil {
				t.Error(err)
			}
			at = p.Steps
		}
	}})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	s, a, b := out.server, out.workers[0], out.workers[1]
	store := reference(t, c)
	if s.HotFrames != a.HotFrames+b.HotFrames || s.HotPairs != a.HotPairs+b.HotPairs || s.HotPairs <= s.HotFrames || s.HotFrames == 0 {
		t.Errorf("the server counts %d frames of %d pairs; the workers %+v, %+v", s.HotFrames, s.HotPairs, a, b)
	}
	// Cold frames of the workers are pulls, too.
	if s.ColdFrames == 0 || s.ColdFrames >= a.Frames+b.Frames-s.HotFrames || s.Rows != store.Len() || s.WeightsSHA256 != hash(store) {
		t.Errorf("%+v; the workers %+v, %+v", s, a, b)
	}
	// A step that takes longer than harvestInStep has more than the harvest at its end.
	if s.Steps != a.Steps || s.Harvests < a.Steps || s.HarvestMessages != s.Harvests {
		t.Errorf("%d steps, %d harvests in %d messages; the workers took %d steps", s.Steps, s.Harvests, s.HarvestMessages, a.Steps)
	}
	if at != 5 || during.Steps != at-1 || during.Harvests < at-1 || during.Harvests >= s.Harvests || during.Rows == 0 || during.Rows > uint64(s.Rows) {
		t.Fatalf("after %d steps: %v", at, during)
	}
	for name, total := range map[string]uint64{"hot_frames": s.HotFrames, "hot_pairs": s.HotPairs, "harvest_messages": s.HarvestMessages, "harvest_bytes": s.HarvestBytes, "cold_frames": s.ColdFrames} {
		if n := during.Counters[name]; n == 0 || n >= total {
			t.Errorf("%s: %d during, %d in the end", name, n, total)
		}
	}
	if during.Counters["hot_frames"] >= during.Counters["hot_pairs"] || during.Counters["harvest_messages"] != during.Harvests {
		t.Errorf("%v", during.Counters)
	}
	if len(during.Counters) != 13 {
		t.Errorf("counters %v", during.Counters)
	}
}

// What no periodic harvest has taken is applied when the last worker has finished.
func TestLastHarvestOfAsynchronousTraining(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames = false, time.Hour, 0
	startSwitch(t, c)
	out := mustTrain(t, c)
	s, a, b := out.server, out.workers[0], out.workers[1]
	if s.HotFrames == 0 || s.HotFrames != a.HotFrames+b.HotFrames || s.HotPairs != a.HotPairs+b.HotPairs {
		t.Errorf("the server counts %d frames of %d pairs; the workers %+v, %+v", s.HotFrames, s.HotPairs, a, b)
	}
	if s.Harvests == 0 {
		t.Error("no harvest was applied")
	}
}

// A worker that is as far ahead of the weights as it may be is waited for by no period: its
// report is what is harvested for.
func TestReportsAreHarvested(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames, c.Job.Staleness = false, time.Hour, 0, 1
	startSwitch(t, c)
	out := mustTrain(t, c)
	// A mini-batch and the one after the next are in different harvests.
	if s, a := out.server, out.workers[0]; s.Harvests < a.Steps/2 || a.Steps < 10 {
		t.Errorf("%d harvests; worker 1 took %d steps", s.Harvests, a.Steps)
	}
}

// The specification of the job says when to harvest, and how much room there is.
func TestJobOfAsynchronousTraining(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames = false, 30*time.Millisecond, 7
	startSwitch(t, c)
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var job *pb.JobStats
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
		if id == 1 && p.Steps == 2 {
			st, err := pb.NewAggregatorClient(conn).Stats(t.Context(), &pb.StatsRequest{})
			if err != nil || len(st.Jobs) != 1 {
				t.Errorf("%v, %v", st, err)
				return
			}
			job = st.Jobs[0]
		}
	}})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if job == nil {
		t.Fatal("no statistics")
	}
	if job.Job != 5 || job.HarvestPeriodUs != 30_000 || job.HarvestFrames != 7 || job.SendersReserved != 2 || job.Slots != 500*4 ||
		job.Exponent != -46 || job.Mode != pb.Mode_MODE_COMBINE || job.Arithmetic != pb.Arithmetic_ARITHMETIC_EXACT || !job.Held {
		t.Errorf("job %v", job)
	}
	// It is gone with its server.
	if st, err := pb.NewAggregatorClient(conn).Stats(t.Context(), &pb.StatsRequest{}); err != nil || len(st.Jobs) != 0 {
		t.Errorf("afterwards: %v, %v", st, err)
	}
}

// A configuration that asks for captures gets one of each process with a link.
func TestCapturesOfAllProcesses(t *testing.T) {
	c := newCluster(t, 2)
	c.Capture = filepath.Join(t.TempDir(), "captures")
	startSwitch(t, c)
	var all lines
	if err := trainWith(t.Context(), c, hooks{}, all.logger()).err(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(c.Capture + "/*")
	want := []string{c.Capture + "/ps.pcapng", c.Capture + "/worker-1.pcapng", c.Capture + "/worker-2.pcapng"}
	if diff := cmp.Diff(want, files); diff != "" || err != nil {
		t.Errorf("%s%v", diff, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte("The payloads are those of a UDP socket")) {
			t.Errorf("%s does not tell that its headers are not those of the network, %v", file, err)
		}
	}
	if n := strings.Count(all.String(), `msg="capture written"`); n != 3 || strings.Contains(all.String(), "frames=0") {
		t.Errorf("%d captures written:\n%s", n, all.String())
	}
}
