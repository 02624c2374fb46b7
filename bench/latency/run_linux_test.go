// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

// A run measures the parts of frames, whose shares add up to 1, and the cost by senders.
func TestEverythingIsMeasured(t *testing.T) {
	c := Defaults()
	c.Batch, c.Sample, c.Duration, c.Senders, c.Frames, c.Rounds, c.Baselines = 200, 1, 50*time.Millisecond, []int{1, 70}, 300, 2, nil
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range r.Job.ops() {
		sum := 0.0
		for _, v := range op.shares.all() {
			sum += *v
		}
		if len(r.Jobs) != 2 || sum < 0.5 || sum > 1.5 { // of medians
			t.Errorf("%s: parts of %d rounds add up to %v", op.name, len(r.Jobs), sum)
		}
	}
	// Half of the pushed rows are hot. What that saves is a share of times, which other programs may
	// make less than nothing.
	if s := r.Saving; len(r.Savings) != 2 || s.Predicted < 0.3 || s.Predicted > 0.9 || s.PushProcess >= 1 || s.Process >= 1 ||
		s.CPU >= 1 || s.PushProcess == 0 || s.Process == 0 || s.CPU == 0 || r.Job.Arithmetic >= 1 || math.IsNaN(s.PushProcess+s.Process+s.CPU+r.Job.Arithmetic) {
		t.Errorf("%+v, arithmetic %v", s, r.Job.Arithmetic)
	}
	if len(r.Senders) != 2 || r.Senders[0].Nanoseconds <= 0 || r.Senders[1].Ratio <= 0 || len(r.Latencies) == 0 {
		t.Errorf("%+v, %d latencies", r.Senders, len(r.Latencies))
	}
}

// The server gets no frames of hot rows: fewer frames than without a hot set, for the same pushes.
func TestServerGetsNoHotRows(t *testing.T) {
	c := Defaults()
	c.Batch, c.Sample = 200, 1
	var frames []uint64
	for _, hot := range [][]uint64{hottest(), {allRows}} {
		cost, err := measureServer(t.Context(), &c, hot)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, cost.frames)
	}
	if frames[0] == 0 || frames[0] >= frames[1] {
		t.Errorf("%d frames of pushes with a hot set, %d without", frames[0], frames[1])
	}
}

// An interrupted run ends with the cause.
func TestRunIsInterrupted(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	c := Defaults()
	c.Baselines = nil
	if r, err := Run(ctx, c); r != nil || !errors.Is(err, why) {
		t.Errorf("%v, %v", r, err)
	}
}
