// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// TestReadmission admits a sender twice to a job on a device without jobs. The second incarnation
// counts its frames from the first number, as the first did; a late frame of the first one is
// refused, whatever its number, and a frame of the second is never treated as a repetition of the
// first's.
func TestReadmission(t *testing.T, d Device) {
	t.Helper()
	job := aggregator.JobConfig{ID: 5, Epoch: 2, Slots: 1}
	if err := d.AddJob(job); err != nil {
		t.Fatal(err)
	}
	s := Sender(0)
	admit := func(epoch uint16) {
		t.Helper()
		s.Epoch = epoch
		if err := d.AddSender(job.ID, s); err != nil {
			t.Fatal(err)
		}
	}
	push := func(what string, epoch uint16, seq uint32, value float32, want wire.Type) {
		t.Helper()
		of := s
		of.Epoch = epoch
		push(t, d, what, job.ID, of, seq, value, want)
	}
	const first, second = 65535, 0 // epochs wrap at the end of their range
	admit(first)
	push("first incarnation", first, 1, 1, wire.TypeAck)
	push("first incarnation", first, 2, 2, wire.TypeAck)
	if err := d.RemoveSender(job.ID, s.ID); err != nil {
		t.Fatal(err)
	}
	push("a late copy before the second admission", first, 1, 1, wire.TypeError)
	admit(second)
	push("a late copy", first, 1, 1, wire.TypeError)
	push("second incarnation, the number that the first had", second, 1, 100, wire.TypeAck)
	push("a late copy", first, 1, 1, wire.TypeError)
	push("a late original, which was never applied", first, 3, 7, wire.TypeError)
	push("second incarnation", second, 2, 200, wire.TypeAck)
	push("its repetition", second, 1, 100, wire.TypeAck)

	b, err := d.Swap(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if b.Slots[0] != 303 || b.Frames != 4 {
		t.Errorf("the sum is %d of %d frames, want 303 of 4: what both incarnations pushed, once", b.Slots[0], b.Frames)
	}
	c, err := d.SenderCounters(job.ID, s.ID)
	if err != nil || c.Applied != 2 || c.Duplicates != 1 || c.Refused != 3 {
		t.Errorf("the second incarnation has counted %+v, %v; want 2 applied, 1 duplicate, 3 refused", c, err)
	}
}
