// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

func TestMarks(t *testing.T) { conformance.TestMarks(t, open(t)) }

func TestTouched(t *testing.T) { conformance.TestTouched(t, open(t)) }

// The marks of a bank are those of the moment of the swap, whatever frames come between it and the
// reading of the filters; also if the first attempt to swap fails.
func TestMarksAreThoseOfTheSwap(t *testing.T) {
	const half = 1 << 62 // of the range of a sum
	job := aggregator.JobConfig{ID: 5, Slots: 1}
	for _, attempts := range []int{1, 2} {
		d := open(t)
		m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
		if err != nil {
			t.Fatal(err)
		}
		model := conformance.ModelDevice(m)
		for _, p := range []conformance.Device{d, model} {
			if err := conformance.StartJob(p, job); err != nil {
				t.Fatal(err)
			}
		}
		d.patience = 10 * time.Millisecond
		seq := uint32(0)
		push := func(s aggregator.SenderConfig, value float32, want wire.Type) {
			t.Helper()
			seq++
			conformance.Push(t, d, job.ID, s, seq, value, want)
			conformance.Push(t, model, job.ID, s, seq, value, want)
		}
		for round := range 4 {
			push(conformance.Sender(0), 1, wire.TypeAck)
			want, err := model.Swap(job.ID)
			if err != nil {
				t.Fatal(err)
			}
			call := 0
			d.waits = func(uint16) { // the banks are exchanged, and the filters are not yet read
				if call++; call > 1 {
					push(conformance.Sender(0), 1, wire.TypeAck)
					return
				}
				push(conformance.Sender(0), half, wire.TypeAck)
				push(conformance.Sender(0), half, wire.TypeError)
				if round > 0 {
					push(conformance.Sender(1), 1, wire.TypeAck)
				}
				if round > 1 { // the first change of its filter is a refusal
					push(conformance.Sender(2), half, wire.TypeError)
				}
				if attempts == 2 {
					d.waitsFor(job.ID)
				}
			}
			got, err := d.Swap(job.ID)
			if attempts == 2 {
				if !errors.Is(err, aggregator.ErrBusy) {
					t.Fatalf("error %v, want that the data plane is busy", err)
				}
				atomic.AndUint32(&d.table.jobs[job.ID].Lock, ^uint32(locked))
				got, err = d.Swap(job.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Marks, want.Marks) {
				t.Errorf("round %d, %d attempts: the marks are\n%v, the model's\n%v", round, attempts, got.Marks, want.Marks)
			}
			if err := errors.Join(d.Clear(got), model.Clear(want)); err != nil {
				t.Fatal(err)
			}
			d.waits = nil
		}
	}
}

// A sender that is withdrawn while a program may still use the bank of a swap has frames in both
// banks: each comes with a mark that has them.
func TestMarksOfASenderThatIsWithdrawnInASwap(t *testing.T) {
	d := open(t)
	job, s := aggregator.JobConfig{ID: 5, Slots: 1}, conformance.Sender(0)
	if err := errors.Join(d.AddJob(job), d.AddSender(job.ID, s)); err != nil {
		t.Fatal(err)
	}
	d.patience = 10 * time.Millisecond
	conformance.Push(t, d, job.ID, s, 1, 1, wire.TypeAck)
	release := func() {}
	d.waits = func(uint16) {
		d.waits = nil
		conformance.Push(t, d, job.ID, s, 2, 1, wire.TypeAck)
		release = d.waitsFor(job.ID)
	}
	if _, err := d.Swap(job.ID); !errors.Is(err, aggregator.ErrBusy) {
		t.Fatalf("error %v, want that the data plane is busy", err)
	}
	if err := d.RemoveSender(job.ID, s.ID); err != nil {
		t.Fatal(err)
	}
	release()
	for i, want := range [][]aggregator.Mark{{conformance.MarkOf(s, 1, 0, 1)}, {conformance.MarkOf(s, 2, 0, 1, 2)}, {}} {
		b, err := d.Swap(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		if frames := []uint64{1, 1, 0}[i]; !slices.Equal(b.Marks, want) || b.Frames != frames {
			t.Errorf("bank %d has %d frames, want %d; its marks are\n%v, want\n%v", i, b.Frames, frames, b.Marks, want)
		}
		if err := d.Clear(b); err != nil {
			t.Fatal(err)
		}
	}
}
