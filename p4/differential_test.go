// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"flag"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
)

var frames = flag.Int("frames", 5000, "number of random frames that a differential test compares")

// jobs are the jobs of the differential tests: modes with arithmetics, few and many slots, whole
// and partial last rows, coarse and fine units. The program takes one lane-aligned stripe per
// frame; the model is configured accordingly.
var jobs = []aggregator.JobConfig{
	{ID: 0, Epoch: 0, Mode: aggregator.Combine, Exp: -46, Slots: 1000},
	{ID: 3, Epoch: 7, Mode: aggregator.FetchAdd, Exp: -46, Slots: aggregator.PageSlots},
	{ID: 7, Epoch: 65535, Mode: aggregator.Combine, Slots: 220},
	{ID: 100, Epoch: 1, Mode: aggregator.FetchAdd, Slots: 37, Exp: -60},
	{ID: 255, Epoch: 300, Mode: aggregator.FetchAdd, Slots: 30000, Exp: 20},
	{ID: 12, Epoch: 3000, Mode: aggregator.Combine, Arithmetic: aggregator.Fixed, Slots: 900},
	{ID: 13, Epoch: 4000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Slots: 21},
	{ID: 14, Epoch: 60, Mode: aggregator.Sync, Workers: conformance.Senders, Exp: -46, Slots: 50},
	{ID: 15, Epoch: 70, Mode: aggregator.Sync, Workers: conformance.Senders, Arithmetic: aggregator.Fixed, Slots: 44},
	{ID: 16, Epoch: 80, Mode: aggregator.FetchAdd, Workers: conformance.Senders, Arithmetic: aggregator.Fixed, Slots: 100},
}

// lutJobs are the jobs of lut arithmetic, separate because a switch with one first gets some
// 340,000 table entries.
var lutJobs = []aggregator.JobConfig{
	{ID: 20, Epoch: 5, Mode: aggregator.FetchAdd, Arithmetic: aggregator.LUT, Slots: 40},
	{ID: 21, Epoch: 6, Mode: aggregator.Combine, Arithmetic: aggregator.LUT, Slots: 1000},
	{ID: 22, Epoch: 7, Mode: aggregator.Sync, Workers: conformance.Senders, Arithmetic: aggregator.LUT, Slots: 30},
}

func init() {
	for _, all := range [][]aggregator.JobConfig{jobs, lutJobs} {
		for i := range all {
			all[i].MaxStripes, all[i].Layouts = 1, aggregator.Aligned
		}
	}
}

// device is a device whose routes name ports of the switch.
type device interface {
	conformance.Device
	AddRoute(mac [6]byte, port uint32) error
}

// pair configures a device and a model equally, with some jobs.
func pair(tb testing.TB, d device, jobs []aggregator.JobConfig) *conformance.Pair {
	tb.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP, AnswerEach: true})
	if err != nil {
		tb.Fatal(err)
	}
	for _, p := range []aggregator.Plane{d, m} {
		if err := conformance.Setup(p, jobs...); err != nil {
			tb.Fatal(err)
		}
	}
	for _, r := range conformance.Routes {
		if err := d.AddRoute(r.Host.MAC, uint32(r.Port+1)); err != nil {
			tb.Fatal(err)
		}
		if err := m.AddRoute(r.Host.MAC, r.Port); err != nil {
			tb.Fatal(err)
		}
	}
	return &conformance.Pair{Device: d, Model: m, Jobs: jobs}
}

// compare passes random frames through a device and a model, which must reach at least some
// verdicts.
func compare(t *testing.T, d device, jobs []aggregator.JobConfig, n int, want ...aggregator.Action) {
	verdicts, err := pair(t, d, jobs).Run(1, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames: %v", n, verdicts)
	for _, a := range want {
		if verdicts[a] == 0 {
			t.Errorf("no frame with verdict %v among %d", a, n)
		}
	}
}

// verdicts are all verdicts.
var verdicts = []aggregator.Action{aggregator.Pass, aggregator.Drop, aggregator.Reply, aggregator.Forward, aggregator.Broadcast}

func TestProgramEqualsModel(t *testing.T) {
	t.Parallel()
	compare(t, openSimulated(t, nil), jobs, *frames, verdicts...)
}

// The vectors define the behaviour of every data plane without the model.
func TestProgramReplaysVectors(t *testing.T) {
	replay(t, func(t *testing.T) device {
		t.Parallel()
		return openWithLUT(t, nil)
	})
}

// replay replays the vector files whose jobs the program supports.
func replay(t *testing.T, open func(t *testing.T) device) {
	files, err := vectors.Load("../aggregator/testdata/vectors")
	if err != nil {
		t.Fatal(err)
	}
	replayed := 0
	for _, f := range files {
		if why := unsupported(t, f); why != "" {
			t.Logf("%s does not apply: %s", f.Name, why)
			continue
		}
		replayed++
		t.Run(f.Name, func(t *testing.T) {
			d := open(t)
			for _, r := range f.Routes {
				if err := d.AddRoute(r.MAC, uint32(r.Port+1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Replay(d); err != nil {
				t.Error(err)
			}
		})
	}
	if replayed == 0 {
		t.Error("no file of vectors applies to the program")
	}
}

// unsupported returns why a vector file does not apply, or "".
func unsupported(t *testing.T, f *vectors.File) string {
	for _, s := range f.Steps {
		if s.AddJob == nil {
			continue
		}
		cfg, err := s.AddJob.Config()
		if err != nil {
			t.Fatal(err)
		}
		if cfg.MaxStripes != 1 || cfg.Layouts != aggregator.Aligned {
			return "its jobs take other frames than of one lane-aligned stripe"
		}
		if _, err := complete(cfg); err != nil {
			return err.Error()
		}
	}
	return ""
}

func TestReadmission(t *testing.T) { conformance.TestReadmission(t, openSimulated(t, nil)) }
