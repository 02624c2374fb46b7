// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/ps"
)

// newServer returns a server with an endpoint, and without a job at an aggregator.
func newServer(t *testing.T, sync bool) *server {
	t.Helper()
	c := newCluster(t, 1)
	c.Job.Sync = sync
	store, err := ps.New(ps.Config{Dim: 2, Exp: fixedpoint.DefaultExp, MaxRows: 10})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		env: Env{Config: c, Log: testLog(t)}, store: store, keys: []uint64{11, 12, 13}, progress: newProgress(sync, 0),
		job: &control.Owned{ID: 5, Job: &pb.Job{Instance: 77}},
		due: make(chan struct{}, 1),
	}
	if err := s.startLoop(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.loop.Close(), s.endCapture()); err != nil {
			t.Error(err)
		}
	})
	s.service = control.NewParameterServer(t.Context(), control.ParameterServerConfig{})
	return s
}

// theJob is the only share of a job that is not divided.
var theJob = &openShare{job: &control.Owned{Job: &pb.Job{Instance: 77}}}

// A harvest counts once, if it holds something, and ends a step of asynchronous
// training.
func TestHarvestsAreCounted(t *testing.T) {
	s := newServer(t, false)
	_ = s.progress.addReport(1, 8, 0)
	apply := func(number, frames uint64) {
		t.Helper()
		h := &control.Harvest{Number: number, Ranks: []uint32{0, 3}, Sums: []int64{1 << 20, 2 << 20}, Frames: frames, Pairs: 10 * frames, Chunks: 3, Bytes: 50}
		if frames == 0 {
			h.Ranks, h.Sums = nil, nil
		}
		if err := s.applyHarvest(t.Context(), theJob, h); err != nil {
			t.Fatal(err)
		}
	}
	apply(1, 5)
	apply(2, 0) // without frames
	apply(1, 5) // again
	apply(3, 7)
	if r := s.result; r.Harvests != 2 || r.HarvestMessages != 6 || r.HarvestBytes != 100 || r.HotFrames != 12 || r.HotPairs != 120 || r.Steps != 2 || s.version != 4 {
		t.Errorf("%+v after %d commits", r, s.version)
	}
	if s.progress.settled[1] != 8 {
		t.Errorf("settled %v", s.progress.settled)
	}
	stats, err := s.serverStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if stats.Rows != 2 || stats.Steps != 2 || stats.Harvests != 2 || stats.Counters["hot_frames"] != 12 || stats.Counters["hot_pairs"] != 120 ||
		stats.Counters["harvest_messages"] != 6 || stats.Counters["cold_frames"] != 0 || stats.Counters["harvest_bytes"] != 100 || len(stats.Counters) != 13 {
		t.Errorf("%v", stats)
	}
}

// In synchronous training the barrier ends the step, and checkpoints fall due by steps.
func TestStepsAreCommitted(t *testing.T) {
	s := newServer(t, true)
	if err := s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1, Ranks: []uint32{1}, Sums: []int64{1}, Frames: 1, Pairs: 1, Chunks: 1}); err != nil {
		t.Fatal(err)
	}
	if s.version != 0 || s.result.Steps != 0 || s.result.Harvests != 1 {
		t.Errorf("%d commits, %+v", s.version, s.result)
	}
	s.env.Config.Server.CheckpointSteps = 3
	for step := range uint64(7) {
		if err := s.commitSync(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		due := len(s.due) == 1
		if due != (step == 2 || step == 5) {
			t.Errorf("after step %d a checkpoint is due: %v", step, due)
		}
		if due {
			<-s.due
		}
		if s.progress.step != step+1 || s.version != step+1 {
			t.Errorf("step %d: progress %d, %d commits", step, s.progress.step, s.version)
		}
	}
	if s.result.Steps != 1 { // the others committed nothing
		t.Errorf("%d steps", s.result.Steps)
	}
	s.env.Config.Server.CheckpointSteps = 0
	if err := s.commitSync(t.Context(), 7); err != nil || len(s.due) != 0 {
		t.Errorf("%v; %d checkpoints are due, and none was asked for", err, len(s.due))
	}
	s.saveSoon()
	s.saveSoon() // does not wait
	if len(s.due) != 1 {
		t.Errorf("%d checkpoints are due", len(s.due))
	}
}

// A harvest that does not fit is an error, and changes and counts nothing.
func TestHarvestThatDoesNotFit(t *testing.T) {
	s := newServer(t, false)
	if err := s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1, Ranks: []uint32{6}, Sums: []int64{1}, Frames: 1, Chunks: 1}); err == nil || !strings.Contains(err.Error(), "rank 6") {
		t.Errorf("a rank beyond the hot set: %v", err)
	}
	s.env.Config.Job.Arithmetic = "lut"
	huge := int64(math.Float32bits(math.MaxFloat32))
	if err := s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1, Ranks: []uint32{1}, Sums: []int64{huge}, Frames: 1, Chunks: 1}); !errors.Is(err, ps.ErrOverflow) {
		t.Errorf("a sum out of range: %v", err)
	}
	if err := s.withDivergence(errors.New("a harvest failed")); !errors.Is(err, control.ErrDiverged) || !strings.Contains(err.Error(), "a harvest failed") {
		t.Errorf("the servers that follow are told %v", err)
	}
	if !reflect.DeepEqual(s.result, ServerResult{}) || s.version != 0 || s.store.Len() != 0 {
		t.Errorf("%+v, %d commits, %d rows", s.result, s.version, s.store.Len())
	}
	s.loop.Close()
	if err := s.applyHarvest(t.Context(), theJob, &control.Harvest{Number: 1}); err == nil {
		t.Error("a harvest is applied by an endpoint that is closed")
	}
	if err := s.commitSync(t.Context(), 0); err == nil || s.progress.step != 0 {
		t.Errorf("a step is committed by an endpoint that is closed: %v", err)
	}
	if _, err := s.serverStats(t.Context()); err == nil {
		t.Error("an endpoint that is closed has statistics")
	}
}
