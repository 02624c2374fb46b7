// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/wire"
)

// Harvests contain whole frames, while frames of lut arithmetic take their passes: each frame adds
// 1 to all lanes of a row, so all lanes hold the same sum, that of the number of frames that the
// bank has counted.
func TestSwitchHarvestsWholeFrames(t *testing.T) {
	needBmv2(t)
	d := openWired(t, nil)
	job := aggregator.JobConfig{ID: 4, Epoch: 1, Arithmetic: aggregator.LUT, Slots: wire.Lanes}
	if err := conformance.StartJob(d, job); err != nil {
		t.Fatal(err)
	}
	const frames = 2000
	sent := make(chan error, 1)
	go func() { sent <- push(d, job, frames) }()
	adder, err := lut.New(lut.Config{})
	if err != nil {
		t.Fatal(err)
	}
	applied, harvests := uint64(0), 0
	for done := false; !done; harvests++ {
		select {
		case err := <-sent:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
		b, err := d.Swap(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		want := uint32(0)
		for range b.Frames {
			want = adder.Add(want, math.Float32bits(1))
		}
		for rank, sum := range b.Slots {
			if sum != int64(want) {
				t.Fatalf("harvest %d of %d frames: rank %d holds %#x, want %#x", harvests, b.Frames, rank, sum, want)
			}
		}
		applied += b.Frames
		if err := d.Clear(b); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d harvests", harvests)
	if applied != frames {
		t.Errorf("%d harvests of %d frames, %d were answered", harvests, applied, frames)
	}
}

// push sends frames that add 1 to each lane, and waits for all answers.
func push(d *wired, job aggregator.JobConfig, frames int) error {
	const outstanding = 32
	for seq := range frames + outstanding {
		if seq >= outstanding {
			if _, err := d.receive(d.taps[1]); err != nil {
				return err
			}
		}
		if seq >= frames {
			continue
		}
		if _, err := unix.Write(d.taps[1], onesFrame(d.tb, job, wire.FirstSeq+uint32(seq))); err != nil {
			return err
		}
	}
	return nil
}
