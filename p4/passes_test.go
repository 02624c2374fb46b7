// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// A frame takes the number of passes that docs/p4.md has for it.
func TestPasses(t *testing.T) {
	d := openWithLUT(t, nil)
	for i, c := range []struct {
		what             string
		job              aggregator.JobConfig
		first, duplicate int
	}{
		{"exact", aggregator.JobConfig{}, 1, 1},
		{"fixed", aggregator.JobConfig{Arithmetic: aggregator.Fixed}, 1, 1},
		{"lut", aggregator.JobConfig{Arithmetic: aggregator.LUT}, wire.Lanes + 2, 1},
		{"a round of exact", aggregator.JobConfig{Mode: aggregator.Sync, Workers: 1}, 3, 1},
		{"a round of lut", aggregator.JobConfig{Mode: aggregator.Sync, Workers: 1, Arithmetic: aggregator.LUT}, wire.Lanes + 3, 1},
	} {
		c.job.ID, c.job.Epoch, c.job.Slots = uint16(i), 1, wire.Lanes
		if err := d.AddJob(c.job); err != nil {
			t.Fatal(err)
		}
		s := conformance.Sender(0)
		s.Epoch = c.job.Epoch
		if err := d.AddSender(c.job.ID, s); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{c.first, c.duplicate} {
			d.fake.Process(1, onesFrame(t, c.job, wire.FirstSeq))
			if got := d.fake.program.passes; got != want {
				t.Errorf("%s: %d passes, want %d", c.what, got, want)
			}
		}
	}
}
