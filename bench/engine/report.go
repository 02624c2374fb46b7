// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Machine Machine `json:"machine"`
	// Interface is what was measured; absent: a veth pair.
	Interface *Interface    `json:"interface,omitempty"`
	Rounds    int           `json:"rounds"`
	Duration  time.Duration `json:"duration_ns"`
	// Results has one entry for each test, size and baseline that was measured.
	Results []Result `json:"results"`
	// Ratios compare Libra with each baseline.
	Ratios []Ratio `json:"ratios"`
	// Targets are what Libra has to reach, of what the run measured.
	Targets []Target `json:"targets"`
	// Unavailable is what was not measured, and why.
	Unavailable []experiment.Unavailable `json:"unavailable"`
}

// Machine is where the figures come from.
type Machine struct {
	Kernel    string `json:"kernel"`
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	GoVersion string `json:"go"`
}

// Result is the outcome of one baseline in one test at one size. Its figures are
// medians over the rounds.
type Result struct {
	Test     Test   `json:"test"`
	Size     int    `json:"frame_bytes"` // bytes of a frame
	Baseline string `json:"peer"`

	Figures
	PPSMin float64 `json:"min_frames_per_s"`
	PPSMax float64 `json:"max_frames_per_s"`

	// RoundTrip is the histogram of all round-trip times; only of an interface.
	RoundTrip []Bucket `json:"round_trip,omitempty"`

	// Drops are frames that were lost, by cause, over all rounds: counters of the
	// tested program's own, of its sockets, and of both ends of the cable.
	Drops map[string]uint64 `json:"drops"`
	// Samples are the rounds.
	Samples []Sample `json:"samples"`
}

// Cost is CPU time per frame in nanoseconds: of the tested program in user space,
// in the kernel for its end of the cable, and for the opposite end.
type Cost struct {
	NsUser     float64 `json:"user_ns_per_frame"`
	NsKernel   float64 `json:"kernel_ns_per_frame"`
	NsOpposite float64 `json:"opposite_ns_per_frame"`
}

// Figures are what is measured in a round.
type Figures struct {
	PPS float64 `json:"frames_per_s"` // frames per second; in request-response, exchanges
	Cost

	// Round-trip times in nanoseconds; absent from tests that have none.
	P50ns *float64 `json:"p50_ns,omitempty"`
	P99ns *float64 `json:"p99_ns,omitempty"`
}

// Sample is one measurement.
type Sample struct {
	Figures
	drops map[string]uint64
}

// Ratio compares Libra with a baseline. Every figure is Libra's divided by the
// baseline's: above 1 is better in PPS, below 1 in latency.
type Ratio struct {
	Test     Test   `json:"test"`
	Size     int    `json:"frame_bytes"`
	Baseline string `json:"peer"`
	// OfMedians is the ratio of the medians of the rates. Paired is the median of
	// the ratios within each round, with the smallest and the largest of them.
	OfMedians float64 `json:"ratio_of_medians"`
	Paired    float64 `json:"paired_ratio"`
	PairedMin float64 `json:"min_paired_ratio"`
	PairedMax float64 `json:"max_paired_ratio"`
	// Ratios of the medians of the latencies; absent from tests that have none.
	P50 *float64 `json:"p50_ratio,omitempty"`
	P99 *float64 `json:"p99_ratio,omitempty"`
}

// Target is a ratio that Libra has to reach: of the rates, at least, or of the
// latencies, at most, each of medians.
type Target struct {
	Test     Test   `json:"test"`
	Size     int    `json:"frame_bytes"`
	Baseline string `json:"peer"`
	Figure   string `json:"figure"` // "rate", "p50" or "p99"
	experiment.Verdict
}

func newResult(test Test, size int, baseline string, samples []Sample) Result {
	rate := experiment.Over(samples, func(s Sample) float64 { return s.PPS })
	r := Result{
		Test: test, Size: size, Baseline: baseline, Samples: samples,
		Figures: experiment.MedianOf(samples).Figures, PPSMin: rate.Min, PPSMax: rate.Max,
	}
	for _, s := range samples {
		experiment.Add(&r.Drops, s.drops)
	}
	return r
}

// addResults adds the results of a test at a size, and the ratios of Libra's to the
// others. Samples with the same index are of the same round.
func (r *Report) addResults(results []Result) {
	r.Results = append(r.Results, results...)
	ours := experiment.Find(results, func(res Result) bool { return res.Baseline == Libra })
	if ours == nil {
		return
	}
	rate := func(s Sample) float64 { return s.PPS }
	for _, b := range results {
		if b.Baseline == Libra {
			continue
		}
		paired := experiment.Ratios(experiment.Pick(ours.Samples, rate), experiment.Pick(b.Samples, rate))
		ratio := Ratio{
			Test: b.Test, Size: b.Size, Baseline: b.Baseline, OfMedians: experiment.Quotient(ours.PPS, b.PPS),
			Paired: paired.Median, PairedMin: paired.Min, PairedMax: paired.Max,
		}
		if ours.P50ns != nil && b.P50ns != nil {
			ratio.P50, ratio.P99 = new(experiment.Quotient(*ours.P50ns, *b.P50ns)),
				new(experiment.Quotient(*ours.P99ns, *b.P99ns))
		}
		r.Ratios = append(r.Ratios, ratio)
	}
}

func (r *Report) ratioTo(to Result) *Ratio {
	return experiment.Find(r.Ratios, func(q Ratio) bool {
		return q.Test == to.Test && q.Size == to.Size && q.Baseline == to.Baseline
	})
}

// targets are what Libra has to reach against a baseline.
var targets = []struct {
	test     Test
	baseline string
	sizes    []int // nil: every size
	pps      float64
	latency  float64 // of p50 and of p99
}{
	{test: Transmit, baseline: Libxdp, sizes: []int{minHot, maxHot}, pps: 0.97},
	{test: Receive, baseline: Libxdp, sizes: []int{minHot, maxHot}, pps: 0.97},
	{test: Echo, baseline: Libxdp, sizes: []int{minHot, maxHot}, pps: 0.97},
	{test: Transmit, baseline: Asavie, sizes: []int{minHot, maxHot}, pps: 1.15},
	{test: Echo, baseline: Asavie, sizes: []int{minHot, maxHot}, pps: 1.2},
	{test: Transmit, baseline: UDP, sizes: []int{minHot}, pps: 6},
	{test: Echo, baseline: UDP, sizes: []int{minHot}, pps: 5},
	{test: Transmit, baseline: DPDK, sizes: []int{minHot, maxHot}, pps: 1},
	{test: Receive, baseline: DPDK, sizes: []int{minHot, maxHot}, pps: 1},
	{test: Echo, baseline: DPDK, sizes: []int{minHot, maxHot}, pps: 1},
	{test: RequestResponse, baseline: UDP, latency: 0.7},
	{test: Push, baseline: Bare, sizes: []int{minHot}, pps: 0.9},
	{test: Push, baseline: Bare, sizes: []int{maxHot}, pps: 0.85},
	{test: Push, baseline: EchoInPush, pps: 0.85},
}

func (r *Report) judgeResults() {
	for _, t := range targets {
		for _, q := range r.Ratios {
			if q.Test != t.test || q.Baseline != t.baseline || t.sizes != nil && !slices.Contains(t.sizes, q.Size) {
				continue
			}
			add := func(figure string, v experiment.Verdict) {
				r.Targets = append(r.Targets, Target{Test: q.Test, Size: q.Size, Baseline: q.Baseline, Figure: figure, Verdict: v})
			}
			if t.pps > 0 {
				add("rate", experiment.AtLeast(t.pps, q.OfMedians))
			}
			if t.latency > 0 && q.P50 != nil {
				add("p50", experiment.AtMost(t.latency, *q.P50))
				add("p99", experiment.AtMost(t.latency, *q.P99))
			}
		}
	}
}

// String names the figure of a target.
func (t Target) String() string {
	return fmt.Sprintf("%s, %d bytes: %s of libra divided by that of %s", t.Test, t.Size, t.Figure, t.Baseline)
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people. The ratios are Libra's rate, or median
// latency, divided by the baseline's.
func (r *Report) Print(out *report.Printer) {
	var rows [][]any
	for _, res := range r.Results {
		ratio, p50, p99 := "", "", ""
		if q := r.ratioTo(res); q != nil {
			ratio, p50, p99 = fmt.Sprintf("%.2f", q.OfMedians), optional(q.P50, 1, "%.2f"), optional(q.P99, 1, "%.2f")
		}
		rows = append(rows, []any{
			res.Test, res.Size, res.Baseline, mpps(res.PPS), mpps(res.PPSMin), mpps(res.PPSMax), ratio,
			fmt.Sprintf("%.0f", res.NsUser), fmt.Sprintf("%.0f", res.NsKernel), fmt.Sprintf("%.0f", res.NsOpposite),
			optional(res.P50ns, 1e3, "%.1f"), optional(res.P99ns, 1e3, "%.1f"), p50, p99, res.mainLoss(),
		})
	}
	out.Table(
		fmt.Sprintf("%s, %s, Linux %s, %s; medians of %s of %v",
			cmp.Or(r.Machine.CPU, "unknown CPU"), english.Plural(r.Machine.CPUs, "CPU", ""), r.Machine.Kernel,
			r.Machine.GoVersion, english.Plural(r.Rounds, "round", ""), r.Duration),
		[]string{
			"test", "size", "baseline", "Mpps", "min", "max", "libra/baseline", "user ns", "kernel ns", "far ns",
			"p50 µs", "p99 µs", "p50 ratio", "p99 ratio", "dropped",
		}, rows)
	r.printInterface(out)
	var targets []experiment.Target
	for _, t := range r.Targets {
		targets = append(targets, experiment.Target{What: t.String(), Verdict: t.Verdict})
	}
	experiment.PrintTargets(out, targets)
	experiment.PrintUnavailable(out, r.Unavailable)
}

// printInterface writes what was measured on, and the histograms.
func (r *Report) printInterface(out *report.Printer) {
	if r.Interface == nil {
		return
	}
	mode := "copy mode"
	if r.Interface.ZeroCopy {
		mode = "zero-copy mode"
	}
	out.Note("%s (driver %s), queues %v, %s", r.Interface.Name, cmp.Or(r.Interface.Driver, "unknown"),
		r.Interface.Queues, mode)
	for _, res := range r.Results {
		var rows [][]any
		for _, b := range res.RoundTrip {
			rows = append(rows, []any{fmt.Sprintf("%g", float64(b.UpTo)/1e3), b.Count})
		}
		if rows != nil {
			out.Table(fmt.Sprintf("Round trips, %d bytes", res.Size), []string{"up to µs", "frames"}, rows)
		}
	}
}

func mpps(pps float64) string { return fmt.Sprintf("%.3f", pps/1e6) }

func optional(v *float64, unit float64, format string) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf(format, *v/unit)
}

// mainLoss names the cause that lost most frames; the report has them all.
func (r *Result) mainLoss() string {
	if len(r.Drops) == 0 {
		return ""
	}
	causes := slices.SortedFunc(maps.Keys(r.Drops), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Drops[b], r.Drops[a]), cmp.Compare(a, b))
	})
	return fmt.Sprintf("%d %s", r.Drops[causes[0]], causes[0])
}

// Charts returns for each test that was measured the CPU time of a frame
// (cpu-TEST) and the rates (rate-TEST) or round-trip times (latency).
func (r *Report) Charts() (charts []chart.Chart) {
	for _, test := range append(Tests(), Forward) {
		results := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Test != test })
		slices.SortStableFunc(results, func(a, b Result) int { return cmp.Compare(a.Size, b.Size) })
		// A chart has a group of bars for each size, of one part or of a dark and a
		// light one.
		add := func(name, title, unit string, parts func(Result) (dark, light chart.Part)) {
			c := chart.Chart{
				Name: name, Title: fmt.Sprintf("%s: %s", test, title), Legend: chart.TopRight,
				X: chart.Axis{Label: "frame size in bytes"}, Y: chart.Axis{Label: unit, Room: 1.35},
			}
			chart.AddBars(&c, results,
				func(res Result) string { return fmt.Sprint(res.Size) }, func(res Result) string { return res.Baseline },
				func(res Result) []chart.Part {
					dark, light := parts(res)
					// Colours go by the place among all, so that they agree between charts.
					dark.Name, dark.Colour = res.Baseline, slices.Index(Baselines(), res.Baseline)
					light.Colour, light.Variant = dark.Colour, 1
					if light.Height <= 0 {
						return []chart.Part{dark}
					}
					return []chart.Part{dark, light}
				})
			charts = append(charts, c)
		}
		add("cpu-"+string(test), "CPU time of the tested end, user (dark) and kernel (light)", "ns per frame",
			func(res Result) (dark, light chart.Part) {
				return chart.Part{Height: res.NsUser}, chart.Part{Height: res.NsKernel}
			})
		if test == RequestResponse {
			add("latency", "round-trip time, median (dark) and 99th percentile (light)", "µs",
				func(res Result) (dark, light chart.Part) {
					return chart.Part{Height: *res.P50ns / 1e3}, chart.Part{Height: (*res.P99ns - *res.P50ns) / 1e3}
				})
			continue
		}
		add("rate-"+string(test), "rate, median with smallest and largest round", "million frames per second",
			func(res Result) (dark, light chart.Part) {
				return chart.Part{Height: res.PPS / 1e6, Low: res.PPSMin / 1e6, High: res.PPSMax / 1e6}, chart.Part{}
			})
	}
	return charts
}
