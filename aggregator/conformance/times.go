// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// TestTimes pushes to two jobs on a device without jobs that draws one frame of sample. Each job
// has the times of its own drawn frames: those that were applied, now or before, and no refused
// ones, whoever sent them. A job that is removed takes its times with it.
func TestTimes(t *testing.T, d Device, sample int) {
	t.Helper()
	const frames = 300
	draw, drawn := telemetry.NewDraw(sample), uint64(0)
	for seq := range uint32(frames) {
		if draw.Draws(seq + 1) {
			drawn++
		}
	}
	one, other := aggregator.JobConfig{ID: 5, Epoch: 2, Slots: 1}, aggregator.JobConfig{ID: 6, Epoch: 3, Slots: 1}
	for _, j := range []aggregator.JobConfig{one, other} {
		if err := StartJob(d, j); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(id uint16, want uint64) {
		t.Helper()
		times, err := d.JobTimes(id)
		if err != nil {
			t.Fatal(err)
		}
		if n := times.Count(); n != want {
			t.Errorf("job %d has %d times, want %d", id, n, want)
		}
		if m := times.Mean(); want > 0 && (m <= 0 || m > time.Minute || times.Quantile(1) < m/2) {
			t.Errorf("job %d: the mean is %v, the largest %v", id, m, times.Quantile(1))
		}
	}
	s := Sender(0)
	s.Epoch = one.Epoch
	for range 2 { // the second time they are duplicates
		for seq := range uint32(frames) {
			push(t, d, "a frame", one.ID, s, seq+1, 1, wire.TypeAck)
		}
	}
	stranger, late := s, s
	stranger.ID = 9
	late.Epoch++
	for seq := range uint32(frames) {
		push(t, d, "a stranger's frame", one.ID, stranger, seq+1, 1, wire.TypeError)
		push(t, d, "a frame of another epoch", one.ID, late, seq+1, 1, wire.TypeError)
	}
	counted(one.ID, 2*drawn)
	counted(other.ID, 0)
	if err := d.RemoveJob(one.ID); err != nil {
		t.Fatal(err)
	}
	if err := StartJob(d, one); err != nil {
		t.Fatal(err)
	}
	counted(one.ID, 0)
}
