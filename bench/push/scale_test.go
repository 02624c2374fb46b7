// SPDX-License-Identifier: Apache-2.0

package push

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// near tells whether two figures are the same but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// Of a worker that takes 20 ns a pair, a server that takes 10 besides a tenth of its CPU, and links
// of 1000 MB/s, the rate is what the scarcest allows; doubling what that costs halves it.
func TestLimitIsTheScarcest(t *testing.T) {
	roles := Roles{
		Worker: RoleCost{NsUser: 15, NsKernel: 5}, Server: RoleCost{NsUser: 4, NsKernel: 6, Harvests: 0.1}, WorkerBytes: 8, ServerBytes: 5,
	}
	for _, test := range []struct {
		workers, servers int
		cpus, line, rate float64
		bottleneck       string
	}{
		{1, 1, 1, 0, 50e6, "worker"},
		{2, 1, 1, 0, 90e6, "server"},
		{4, 2, 1, 0, 190e6, "server"},
		{4, 2, 0.2, 0, 30e6, "server"},
		{2, 2, 0.2, 0, 20e6, "worker"},
		{64, 1, 0.05, 0, 0, "server"}, // that cannot even harvest
		{1, 8, 1, 200e6, 25e6, "worker link"},
		{8, 1, 1, 200e6, 40e6, "server link"},
	} {
		rate, bottleneck := roles.limit(test.workers, test.servers, test.cpus, test.line)
		if !near(rate, test.rate) || bottleneck != test.bottleneck {
			t.Errorf("%+v: %v, %s", test, rate, bottleneck)
		}
	}
	slow := roles
	slow.Worker = RoleCost{NsUser: 30, NsKernel: 10}
	if rate, _ := slow.limit(1, 8, 1, 0); !near(rate, 25e6) {
		t.Errorf("a worker at twice the cost: %v, want half the rate", rate)
	}
}

// A role that takes 20 ns a pair and 5 % of a CPU for harvests, 20 % for four times as many.
func TestHarvestsAreNotTimeOfPairs(t *testing.T) {
	perPair, harvests := withHarvests(20*8e6+0.05e9, 8e6, 20*6e6+0.2e9, 6e6)
	if !near(perPair, 20) || !near(harvests, 0.05e9) {
		t.Errorf("%v ns a pair, %v ns a second", perPair, harvests)
	}
	if perPair, harvests = withHarvests(100, 10, 50, 10); perPair != 10 || harvests != 0 {
		t.Errorf("fewer with more harvests: %v and %v", perPair, harvests)
	}
	if perPair, harvests = withHarvests(100, 0, 50, 10); perPair != 0 || harvests != 0 {
		t.Errorf("without pushes: %v and %v", perPair, harvests)
	}
}

// studied is a report with a study of made-up samples: Libra's server takes half the time of the
// baseline's.
func studied() *Report {
	cfg := ScaleDefaults()
	r := &Report{}
	for baseline, ns := range map[string]float64{Libra: 10, ZeroMQTable: 20} {
		roles := &Roles{Worker: RoleCost{NsUser: 10, NsKernel: 10}, Server: RoleCost{NsUser: ns}, WorkerBytes: 8, ServerBytes: 8}
		if baseline == Libra {
			roles.Switch = RoleCost{NsKernel: 5, Harvests: 0.1}
		}
		r.addResult(Result{Workers: 2, Batch: 32, Baseline: baseline, Servers: 1, Hot: HotKeys, Samples: []Sample{
			{Figures: Figures{PairsPerSecond: 1, Roles: roles}, Held: &Held{Share: 0.2, PairsPerSecond: 15e6, WorkerCPUs: 0.1, ServerCPUs: 0.2}},
		}})
	}
	r.finishReport()
	r.addScale(&cfg)
	return r
}

func TestScale(t *testing.T) {
	r := studied()
	find := func(baseline string, workers, servers int) *ScalePoint {
		return experiment.Find(r.Scale.Points, func(p ScalePoint) bool {
			return p.Baseline == baseline && p.Workers == workers && p.Servers == servers
		})
	}
	if n := len(r.Scale.Points); n != 2*len(scaleWorkers)*len(scaleServers) {
		t.Errorf("%d points", n)
	}
	ours, theirs := find(Libra, 64, 8), find(ZeroMQTable, 64, 8)
	if !near(ours.PairsPerSecond, 800e6) || ours.Bottleneck != "server" || !near(ours.SwitchCPUs, 4.1) || ours.Ratio != 1 {
		t.Errorf("%+v", ours)
	}
	if !near(theirs.PairsPerSecond, 400e6) || theirs.SwitchCPUs != 0 || !near(theirs.Ratio, 2) {
		t.Errorf("%+v", theirs)
	}
	for _, c := range r.Scale.Checks {
		predicted, bottleneck := 20e6, "server"
		if c.Baseline == ZeroMQTable {
			predicted = 10e6
		}
		if !near(c.Predicted, predicted) || !near(c.Error, 15e6/predicted-1) || c.Baseline == ZeroMQTable && c.Bottleneck != bottleneck {
			t.Errorf("%+v", c)
		}
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range append([]string{"800.0", "8 servers", "+50", "-25", "a worker's CPUs"}, strings.Fields(strings.Join(r.Scale.Assumptions, " "))...) {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	paths, err := chart.Write(t.TempDir(), r.Charts())
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(paths[len(paths)-1])
	if filepath.Base(paths[len(paths)-1]) != "push-scale-32.svg" || err != nil || !strings.Contains(string(svg), "libra, 8 servers") {
		t.Errorf("%v, %v", paths, err)
	}
}

// A share for each worker and the server leaves half of the machine to the switch.
func TestHeldShare(t *testing.T) {
	for _, test := range []struct {
		workers, cpus int
		share         float64
	}{{2, 2, 0.2}, {4, 2, 0.2}, {9, 2, 0.1}, {64, 64, 0.2}} {
		if got := heldShare(test.workers, test.cpus); !near(got, test.share) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
