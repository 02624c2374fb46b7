// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// TestConfigLimits completes configurations at both ends of each range, and one step beyond; the
// error names the value and the range.
func TestConfigLimits(t *testing.T) {
	type config = aggregator.JobConfig
	good := config{ID: 5, Slots: 100}
	for name, c := range map[string]struct {
		change func(*config)
		refuse string // part of the error; empty: accepted
	}{
		"last job":          {func(c *config) { c.ID = aggregator.MaxJobs - 1 }, ""},
		"job":               {func(c *config) { c.ID = aggregator.MaxJobs }, "job ids end at 255"},
		"least exponent":    {func(c *config) { c.Exp = fixedpoint.MinExp }, ""},
		"greatest exponent": {func(c *config) { c.Exp = fixedpoint.MaxExp }, ""},
		"small exponent":    {func(c *config) { c.Exp = fixedpoint.MinExp - 1 }, "exponent -101 is not in [-100, 60]"},
		"great exponent":    {func(c *config) { c.Exp = fixedpoint.MaxExp + 1 }, "exponent 61 is not in [-100, 60]"},
		"lut":               {func(c *config) { c.Arithmetic = aggregator.LUT }, ""},
		"lut exponent":      {func(c *config) { c.Arithmetic, c.Exp = aggregator.LUT, 1 }, "exponent 1, but lut arithmetic has none"},
		"one slot":          {func(c *config) { c.Slots = 1 }, ""},
		"all slots":         {func(c *config) { c.Slots = aggregator.MaxSlots }, ""},
		"no slots":          {func(c *config) { c.Slots = 0 }, "0 slots"},
		"more slots":        {func(c *config) { c.Slots = aggregator.MaxSlots + 1 }, "67108865, at most 67108864"},
		"a page of rounds":  {func(c *config) { c.Mode, c.Workers, c.Slots = aggregator.Sync, 2, aggregator.PageSlots }, ""},
		"pages of rounds": {func(c *config) { c.Mode, c.Workers, c.Slots = aggregator.Sync, 2, aggregator.PageSlots+1 },
			"65537, at most 65536 in sync mode, whose rounds are of one page"},
		"one stripe":       {func(c *config) { c.MaxStripes = 1 }, ""},
		"25 stripes":       {func(c *config) { c.MaxStripes = wire.MaxStripes }, ""},
		"26 stripes":       {func(c *config) { c.MaxStripes = wire.MaxStripes + 1 }, "26 stripes a frame; it must be 1 to 25"},
		"negative stripes": {func(c *config) { c.MaxStripes = -1 }, "-1 stripes a frame; it must be 1 to 25"},
		"one worker":       {func(c *config) { c.Mode, c.Workers = aggregator.Sync, 1 }, ""},
		"all workers":      {func(c *config) { c.Mode, c.Workers = aggregator.Sync, aggregator.MaxWorkers }, ""},
		"more workers":     {func(c *config) { c.Mode, c.Workers = aggregator.Sync, aggregator.MaxWorkers+1 }, "65 workers, at most 64 can take part in rounds"},
		"negative workers": {func(c *config) { c.Arithmetic, c.Workers = aggregator.Fixed, -1 }, "-1 workers, at most 64"},
		"no workers":       {func(c *config) { c.Mode = aggregator.Sync }, "sync mode needs the number of workers"},
		"scale":            {func(c *config) { c.Arithmetic, c.Workers = aggregator.Fixed, 2 }, ""},
		"no scale":         {func(c *config) { c.Arithmetic = aggregator.Fixed }, ""},
		"no rounds":        {func(c *config) { c.Workers = 2 }, "2 workers, but combine mode with exact arithmetic has no rounds"},
		"dense rounds":     {func(c *config) { c.Mode, c.Workers, c.Layouts = aggregator.Sync, 2, aggregator.Dense }, "sync mode takes lane-aligned frames only"},
		"layouts":          {func(c *config) { c.Layouts = 4 }, "layouts 0x4"},
		"mode":             {func(c *config) { c.Mode = aggregator.Acked + 1 }, "Mode(4)"},
		"arithmetic":       {func(c *config) { c.Arithmetic = aggregator.Fixed + 1 }, "Arithmetic(3)"},
	} {
		cfg := good
		c.change(&cfg)
		got, err := cfg.Complete()
		if c.refuse == "" {
			if err != nil || got.Slots != cfg.Slots || got.Exp != cfg.Exp || got.Workers != cfg.Workers {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%s: %v, want %q", name, err, c.refuse)
		}
	}
	got, err := good.Complete()
	if err != nil || got.MaxStripes != wire.DefaultStripes || got.Layouts != aggregator.Aligned|aggregator.Dense {
		t.Errorf("defaults: %+v, %v", got, err)
	}
	rounds, err := config{Slots: 1, Mode: aggregator.Sync, Workers: 2}.Complete()
	if err != nil || rounds.Layouts != aggregator.Aligned {
		t.Errorf("defaults of rounds: %+v, %v", rounds, err)
	}
}

func TestDefaultExponents(t *testing.T) {
	for a, want := range map[aggregator.Arithmetic]int{aggregator.Exact: -46, aggregator.Fixed: -20, aggregator.LUT: 0} {
		if got := aggregator.DefaultExp(a); got != want {
			t.Errorf("%v: %d, want %d", a, got, want)
		}
	}
}

func TestSlotsAsFloats(t *testing.T) {
	for _, c := range []struct {
		job  aggregator.JobConfig
		slot int64
		want float32
	}{
		{aggregator.JobConfig{Exp: -46}, 3 << 45, 1.5},
		{aggregator.JobConfig{Exp: 0}, -7, -7},
		{aggregator.JobConfig{Arithmetic: aggregator.Fixed, Exp: -20}, -1 << 19, -0.5},
		{aggregator.JobConfig{Arithmetic: aggregator.LUT}, int64(math.Float32bits(-2.25)), -2.25},
	} {
		if got := c.job.Float32(c.slot); got != c.want {
			t.Errorf("%+v: slot %d is %g, want %g", c.job, c.slot, got, c.want)
		}
	}
}

func TestRefusalsTotal(t *testing.T) {
	var r aggregator.Refusals
	want := uint64(0)
	for i := range r {
		r[i] = uint64(i + 1)
		want += r[i]
	}
	if got := r.Total(); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

func TestVerdictsPrint(t *testing.T) {
	for v, want := range map[aggregator.Verdict]string{
		{Action: aggregator.Pass}:                    "pass",
		{Action: aggregator.Drop}:                    "drop",
		{Action: aggregator.Reply}:                   "reply",
		{Action: aggregator.Forward, Port: 3}:        "forward to port 3",
		{Action: aggregator.Broadcast, Job: 9}:       "broadcast to job 9",
		{Action: aggregator.Broadcast + 1, Port: 12}: "Action(5)",
	} {
		if v.String() != want {
			t.Errorf("%q, want %q", v, want)
		}
	}
}
