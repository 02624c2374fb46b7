// SPDX-License-Identifier: Apache-2.0

package push

import (
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// Traces are replayed by all, with sums that are right: of one with rows of several floats and
// pushes of different lengths, and of one that is made up. There are more workers than ranks.
func TestReplay(t *testing.T) {
	cfg := ReplayDefaults(exampleTraces())
	short := testConfig("replay")
	cfg.Workers, cfg.Rounds, cfg.Duration, cfg.WarmUp = []int{3}, 1, 50*time.Millisecond, 20*time.Millisecond
	cfg.ChildCommand = short.ChildCommand
	report, err := Run(t.Context(), cfg)
	bedtest.Check(t, err)
	peers := slices.DeleteFunc(ReplayBaselines(), func(b string) bool {
		return slices.ContainsFunc(report.Unavailable, func(u experiment.Unavailable) bool { return u.Baseline == b })
	})
	f := report.Figure
	if want := len(cfg.Traces) * len(peers) * (len(cfg.Workers) + len(computedWorkers)); len(f.Points) != want {
		t.Errorf("%d points, want %d: %+v", len(f.Points), want, f.Points)
	}
	for _, p := range f.Points {
		if p.RowsPerSecond <= 0 || p.Normalised <= 0 || p.Peer == Unprepared && p.Normalised != 1 {
			t.Errorf("%+v", p)
		}
	}
	for i, slots := range denseSizes() { // of each, a rate is measured
		if len(f.Dense) != len(denseSizes()) || f.Dense[i].Slots != slots || f.Dense[i].Workers != 3 || f.Dense[i].ValuesPerSecond <= 0 {
			t.Fatalf("%+v, want rates with %v slots", f.Dense, denseSizes())
		}
	}
	for i, want := range []Replayed{
		{Name: "rows", Dim: 3, Parameters: 3 * 5, AtLeast: true, Ranks: 2, Rows: 5, HotRows: 5, Slots: 15, HotShare: 1, PerIteration: 2},
		{Name: "skew", Dim: 1, Parameters: 9000, Ranks: 1, PerIteration: 64, HotShare: 1},
	} {
		got := f.Traces[i]
		if len(got.Costs) != len(peers)-1 {
			t.Errorf("%s: costs %+v", got.Name, got.Costs)
		}
		if got.Costs = nil; i > 0 {
			got.Rows, got.HotRows, got.Slots = 0, 0, 0
		}
		if got.Name != want.Name || got.Dim != want.Dim || got.Parameters != want.Parameters || got.AtLeast != want.AtLeast ||
			got.Ranks != want.Ranks || got.Rows != want.Rows || got.HotRows != want.HotRows || got.Slots != want.Slots ||
			got.HotShare != want.HotShare || got.PerIteration != want.PerIteration {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
