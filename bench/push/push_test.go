// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// filled returns a workload for tests.
func filled(batch, workers int) *workload {
	h, size := drawnLayout(batch, workers)
	w := &workload{header: h, mem: make([]byte, size)}
	w.fillWorkload(1)
	return w
}

func TestBatches(t *testing.T) {
	const batch = 4096
	w := filled(batch, 1)
	if share := w.hotShare(); share < 0.63 || share > 0.65 {
		t.Errorf("the %d hottest keys take %.3f of the pairs, want about 0.64", HotKeys, share)
	}
	d := newDrawer(1, batch)
	ranked := make([]uint64, Keys)
	for rank, number := range d.numbers {
		ranked[rank] = keyOf(number)
	}
	keys, grads := make([]uint64, 20*batch), make([]float32, 20*batch)
	d.drawBatches(keys, grads)
	slices.Sort(ranked)
	if len(slices.Compact(ranked)) != Keys {
		t.Error("keys are not distinct")
	}
	for b := range slices.Chunk(keys, batch) {
		for i := range b[1:] {
			if b[i] >= b[i+1] {
				t.Fatalf("keys %#x and %#x of a batch are not in order", b[i], b[i+1])
			}
		}
	}
	for _, g := range grads {
		if g < -0.5 || g >= 0.5 || g/valueUnit != float32(int(g/valueUnit)) {
			t.Fatalf("gradient %v", g)
		}
	}
}

func TestWorkersPushDifferentBatches(t *testing.T) {
	w := filled(32, 2)
	a, b := w.shareOf(0), w.shareOf(1)
	if slices.Equal(a.keys, b.keys) || slices.Equal(a.keysOf(0), a.keysOf(1)) {
		t.Error("batches repeat")
	}
}

// sumsOf returns what a server holds after a number of pushes of each worker.
func sumsOf(w *workload, pushes []uint64) map[uint64][]int64 {
	sums := map[uint64][]int64{}
	for worker, n := range pushes {
		b := w.shareOf(worker)
		for i := range int(n) {
			grads := b.gradsOf(i)
			for k, key := range b.keysOf(i) {
				if sums[key] == nil {
					sums[key] = make([]int64, w.dim)
				}
				for d, g := range grads[k*w.dim : (k+1)*w.dim] {
					one, _ := units.FromFloat32(g)
					sums[key][d] += one
				}
			}
		}
	}
	return sums
}

func TestCheckFindsEveryDifference(t *testing.T) {
	w := filled(32, 2)
	pushes := []uint64{batchesEach + 7, 3}
	var held []row
	for key, sums := range sumsOf(w, pushes) {
		held = append(held, row{key, sums})
	}
	if err := w.checkSums(pushes, held, false); err != nil {
		t.Fatal(err)
	}
	odd := slices.IndexFunc(held, func(r row) bool { return r.units[0] != 0 })
	tests := map[string]struct {
		pushes []uint64
		spoil  func([]row) []row
	}{
		"a lost push":    {[]uint64{pushes[0] + 1, pushes[1]}, func(r []row) []row { return r }},
		"a wrong sum":    {pushes, func(r []row) []row { r[0].units = []int64{r[0].units[0] + 1}; return r }},
		"a lost key":     {pushes, func(r []row) []row { return slices.Delete(r, odd, odd+1) }},
		"a key twice":    {pushes, func(r []row) []row { return append(r, r[0]) }},
		"an unknown key": {pushes, func(r []row) []row { return append(r, row{held[0].key ^ 1, []int64{0}}) }},
	}
	for name, test := range tests {
		if err := w.checkSums(test.pushes, test.spoil(slices.Clone(held)), false); !errors.Is(err, ErrSums) {
			t.Errorf("%s: %v, want ErrSums", name, err)
		}
	}
}

// example is a report of made-up samples.
func example() *Report {
	r := &Report{Rounds: 3}
	for i, baseline := range Baselines() {
		for _, workers := range []int{4, 8} {
			var samples []Sample
			for k := range 3 {
				samples = append(samples, Sample{Figures: Figures{
					PairsPerSecond: float64(max(1, 8-3*i+k)) * 1e6,
					FrameStats:     FrameStats{Fairness: 0.99, Repeated: 0.01},
					Cost:           Cost{NsWorker: 10, NsKernel: 20, NsAggregator: 5, NsServer: float64(10 * (i + 1))},
				}})
			}
			r.addResult(Result{Workers: workers, Batch: 4096, Baseline: baseline, Samples: samples})
		}
	}
	r.finishReport()
	return r
}

func TestReport(t *testing.T) {
	r := example()
	hash := r.findResult(4, 4096, ZeroMQHash)
	if hash.PairsPerSecond != 6e6 || hash.Min != 5e6 || hash.Max != 7e6 || hash.NsTotal != 55 || hash.Ratio != 1.5 {
		t.Errorf("summary %+v", hash)
	}
	verdicts := map[float64]bool{}
	for _, target := range r.Targets {
		verdicts[target.Want] = target.Met
	}
	if len(r.Targets) != 10 || verdicts[0.7] || verdicts[0.92] || !verdicts[0.98] || verdicts[4] || verdicts[2] || !verdicts[1.5] || !verdicts[1] {
		t.Errorf("targets %+v", r.Targets)
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4,096", ZeroMQTable, "6.00", "missed", "met"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

// Pushes through an agent are held against the same in process, round by round.
func TestReportOfAgents(t *testing.T) {
	r := &Report{Rounds: 3}
	for baseline, rounds := range map[string][]Figures{
		Libra:      {{PairsPerSecond: 10, RoundTrip: 10}, {PairsPerSecond: 20, RoundTrip: 10}, {PairsPerSecond: 4, RoundTrip: 10}},
		Agent:      {{PairsPerSecond: 9.5, RoundTrip: 13}, {PairsPerSecond: 10, RoundTrip: 12}, {PairsPerSecond: 4, RoundTrip: 10}},
		ZeroMQHash: {{PairsPerSecond: 1}},
	} {
		samples := experiment.Pick(rounds, func(f Figures) Sample { return Sample{Figures: f} })
		r.addResult(Result{Workers: 1, Batch: 32, Baseline: baseline, Samples: samples})
	}
	r.finishReport()
	if got := r.findResult(1, 32, Agent); got.InProcess != 0.95 || got.InProcessTrip != 1.2 || got.RoundTrip != 12 {
		t.Errorf("%+v", got)
	}
	for _, other := range []string{Libra, ZeroMQHash} {
		if got := r.findResult(1, 32, other); got.InProcess != 0 || got.InProcessTrip != 0 {
			t.Errorf("%+v", got)
		}
	}
	if len(r.Targets) != 2 || !r.Targets[0].Met || r.Targets[1].Met {
		t.Errorf("targets %+v", r.Targets)
	}
}

// Ratios are medians of those within rounds: the quotients of these medians are all 1.
func TestRatiosAreWithinRounds(t *testing.T) {
	r := &Report{Rounds: 3}
	for _, res := range []struct {
		workers  int
		baseline string
		rounds   []float64
	}{{4, Libra, []float64{10, 20, 40}}, {4, Agent, []float64{10, 20, 40}}, {4, ZeroMQTable, []float64{20, 40, 10}}, {8, Libra, []float64{5, 40, 20}}} {
		var samples []Sample
		for _, n := range res.rounds {
			samples = append(samples, Sample{Figures: Figures{PairsPerSecond: n, Cost: Cost{NsServer: n}}})
		}
		r.addResult(Result{Workers: res.workers, Batch: 4096, Baseline: res.baseline, Samples: samples})
	}
	r.finishReport()
	if got := r.findResult(4, 4096, ZeroMQTable).Ratio; got != 0.5 {
		t.Errorf("ratio %v, want 0.5", got)
	}
	for what, want := range map[string]float64{
		"rate of libra divided by that of zeromq-table":                0.5,
		"CPU time per pair, libra's divided into that of zeromq-table": 2,
		"rate of agent divided by that of zeromq-table":                0.5,
		"batches of 4096: rate of 8 workers divided by that of 4":      0.5,
	} {
		target := experiment.Find(r.Targets, func(t experiment.Target) bool { return strings.HasSuffix(t.What, what) })
		if target == nil || target.Got != want {
			t.Errorf("%s: %+v, want %v", what, target, want)
		}
	}
}

// Rates with loss are held against those without, round by round.
func TestReportOfLoss(t *testing.T) {
	r := &Report{Rounds: 3, Loss: 0.01}
	for baseline, rates := range map[string][]float64{Libra: {10, 20, 4}, Lossy: {8, 14, 4}} {
		var samples []Sample
		for i, rate := range rates {
			samples = append(samples, Sample{Figures: Figures{PairsPerSecond: rate, FrameStats: FrameStats{Fairness: float64(i), Repeated: float64(2 * i)}}})
		}
		r.addResult(Result{Workers: 4, Batch: 256, Baseline: baseline, Samples: samples})
	}
	r.finishReport()
	lossy, whole := r.findResult(4, 256, Lossy), r.findResult(4, 256, Libra)
	if lossy.Lossless != 0.8 || whole.Lossless != 0 || lossy.FrameStats != (FrameStats{Fairness: 1, Repeated: 2}) {
		t.Errorf("%+v, %+v", lossy, whole)
	}
	if len(r.Targets) != 1 || !r.Targets[0].Met || !strings.Contains(r.Targets[0].What, "1 % of the frames lost") {
		t.Errorf("targets %+v", r.Targets)
	}
}

// What auto chooses is held against the best of the other numbers, round by round.
func TestReportOfAuto(t *testing.T) {
	r := &Report{Rounds: 3}
	add := func(workers, servers, hot int, auto bool, rates ...float64) {
		var samples []Sample
		for _, rate := range rates {
			samples = append(samples, Sample{Figures: Figures{PairsPerSecond: rate}})
		}
		r.addResult(Result{Workers: workers, Batch: 32, Baseline: Libra, Servers: servers, Hot: hot, Auto: auto, Samples: samples})
	}
	add(1, 1, 30_000, false, 10, 10, 10)
	add(1, 1, 65_536, false, 20, 5, 30)
	add(1, 1, 50_000, true, 19, 4, 15)
	add(1, 2, 30_000, false, 99)
	add(2, 1, 30_000, true, 99) // beside no other
	r.finishReport()
	if len(r.Targets) != 1 || r.Targets[0].Got != 0.8 || r.Targets[0].Met || !strings.HasSuffix(r.Targets[0].What, "50,000 hot: rate divided by the best of other numbers, 65,536") {
		t.Errorf("targets %+v", r.Targets)
	}
}

// Rates of workers with logs are held against those without, round by round.
func TestReportOfLogs(t *testing.T) {
	r := &Report{Rounds: 3}
	for baseline, rates := range map[string][]float64{Libra: {10, 20, 4}, Logged: {9, 19, 3.9}} {
		var samples []Sample
		for _, rate := range rates {
			samples = append(samples, Sample{Figures: Figures{PairsPerSecond: rate}})
		}
		r.addResult(Result{Workers: 4, Batch: 32, Baseline: baseline, Samples: samples})
	}
	r.finishReport()
	if got := r.findResult(4, 32, Logged).Unlogged; got != 0.95 || r.findResult(4, 32, Libra).Unlogged != 0 {
		t.Errorf("with logs %v of the rate without", got)
	}
	if len(r.Targets) != 1 || !r.Targets[0].Met || !strings.Contains(r.Targets[0].What, "rate with logs") {
		t.Errorf("targets %+v", r.Targets)
	}
}

func TestCharts(t *testing.T) {
	paths, err := chart.Write(filepath.Join(t.TempDir(), "charts"), example().Charts())
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 2 {
		t.Errorf("charts %v, want one of rates and one of CPU time", paths)
	}
	for _, p := range paths {
		svg, err := os.ReadFile(p)
		if err != nil || !strings.Contains(string(svg), ZeroMQHash) {
			t.Errorf("%s does not name %s (%v)", p, ZeroMQHash, err)
		}
	}
}
