// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/wire"
)

const (
	actionPass = 2                    // XDP_PASS of <linux/bpf.h>
	seqAt      = wire.EnvelopeLen + 8 // in a frame
)

// slotted returns frames of one stripe: frame k adds 1 to slot k.
func slotted(t *testing.T, job aggregator.JobConfig) [][]byte {
	t.Helper()
	frames := hotFrames(t, job, 1, 1, 0)
	for k, frame := range frames {
		s := wire.StripeAt(frame[wire.EnvelopeLen:], 0)
		s.SetMask(1)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16(k))
			s.SetValue(lane, 1)
		}
		conformance.Repair(frame)
	}
	return frames
}

// Every frame that the feeder gives the program is valid and has the next sequence number, and the
// frames take turns.
func TestFeeder(t *testing.T) {
	d := open(t)
	job, _ := startCostly(t, d, aggregator.Combine)
	frames := slotted(t, job)
	original := slices.Clone(frames[0])
	answer := wire.EnvelopeLen + wire.HeaderLen
	f, err := d.NewFeeder(frames, answer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Enough for all values of the checksum to occur.
	ns, own, err := f.Run(150_000)
	if err != nil {
		t.Fatal(err)
	}
	// The feeder's own time is measured, with frames that go nowhere, and subtracted.
	if own <= 0 || own > 1e5 || math.Abs(ns) > 1e5 {
		t.Errorf("a frame takes %v ns, the feeder %v ns", ns, own)
	}
	if !slices.Equal(frames[0], original) {
		t.Error("the feeder has changed its caller's frame")
	}
	c, err := d.JobCounters(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	// An interrupted run is repeated, so there may be more frames.
	if c.Applied < 150_000 || c.Pairs != c.Applied || c.Duplicates != 0 || c.Refused.Total() != 0 || all != (aggregator.Counters{}) {
		t.Errorf("counted %+v and %+v", c, all)
	}
	for k, sum := range d.places[job.ID].job.banks[0].slots[:FeederFrames] {
		want := (c.Applied + FeederFrames - uint64(k)) / FeederFrames // numbers up to Applied that are k modulo FeederFrames
		if k == 0 {
			want--
		}
		if uint64(sum) != want<<46 {
			t.Errorf("frame %d was applied %g times, want %d", k, math.Ldexp(float64(sum), -46), want)
		}
	}
	// The program that measures the feeder alone also has the answer's length, which is reset.
	out := ebpf.RunOptions{Data: original, DataOut: make([]byte, 4096)}
	if action, err := f.empty.Run(&out); err != nil || action != actionPass || len(out.DataOut) != answer {
		t.Errorf("the program that does nothing: action %d, %d bytes, %v; want %d bytes", action, len(out.DataOut), err, answer)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Run(5); !errors.Is(err, unix.EBADF) || !strings.HasPrefix(err.Error(), "bpf: feed 5 frames: ") {
		t.Errorf("a feeder that is closed: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// A program that aborts is not measured, nor is a program while the feeder alone cannot be.
func TestFeederErrors(t *testing.T) {
	d := open(t)
	job, _ := startCostly(t, d, aggregator.Combine)
	frames := slotted(t, job)
	newFeeder := func(frames [][]byte) error {
		f, err := d.NewFeeder(frames, 60)
		if err != nil {
			return err
		}
		return f.Close()
	}
	longer := slices.Clone(frames)
	longer[7] = append(slices.Clone(frames[7]), 0)
	long := slices.Repeat([][]byte{make([]byte, 3521)}, FeederFrames)
	for want, frames := range map[string][][]byte{
		"bpf: feeder: 63 frames, want a power of two up to 4096":                                                                frames[:63],
		fmt.Sprintf("bpf: feeder: frame 7 has %d bytes, the first one %d, the limit is 3520", len(frames[7])+1, len(frames[7])): longer,
		"bpf: feeder: frame 0 has 3521 bytes, the first one 3521, the limit is 3520":                                            long,
	} {
		if err := newFeeder(frames); err == nil || err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
	if err := newFeeder(slices.Repeat([][]byte{make([]byte, 3520)}, FeederFrames)); err != nil {
		t.Errorf("the longest frames: %v", err)
	}
	refuse.Exhaust(t, "bpf: feeder: ", func() (func() error, error) {
		f, err := d.NewFeeder(frames, 60)
		return f.Close, err
	})
	err := refuse.Run(func() error { return newFeeder(frames) }, refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM))
	checkErrno(t, "no frame can be stored", err, unix.EDOM)

	f, err := d.NewFeeder(frames, 60)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	idle := f.empty
	if f.empty, err = ebpf.NewProgramFromFD(mustDup(t, f.program.FD())); err != nil {
		t.Fatal(err)
	}
	if err := f.empty.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Run(5); !errors.Is(err, unix.EBADF) || !strings.HasPrefix(err.Error(), "bpf: feed 5 frames to an empty program: ") {
		t.Errorf("without the other program: %v", err)
	}
	f.empty = idle
	// Without its target the tail call fails.
	targets := f.closers[0].(*feederObjects).Target
	if err := targets.Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Run(5); err == nil || err.Error() != "bpf: feed 5 frames: the program aborted" {
		t.Errorf("a program that aborts: %v", err)
	}
}
