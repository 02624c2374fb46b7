// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// ErrSums is wrapped by the error of a run whose server holds other sums than
// were pushed.
var ErrSums = errors.New("push: wrong sums")

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"duration_ns"`
	Harvest  time.Duration `json:"harvest_ns"`
	Loss     float64       `json:"loss"` // share of the frames that the lossy workers lost in each direction
	// Results has one entry for each number of workers, batch size and baseline.
	Results []Result `json:"results"`
	// Targets are what Libra has to reach, of what the run measured.
	Targets []experiment.Target `json:"targets"`
	// Unavailable is what was not measured, and why.
	Unavailable []experiment.Unavailable `json:"unavailable"`
	// Scale is present with --scale.
	Scale *Scale `json:"scale,omitempty"`
	// Figure is present with --trace, in place of results.
	Figure *Figure `json:"replay,omitempty"`
}

// Result is the outcome of one baseline. Its figures are medians over the rounds.
// The sums that its server held were right in all of them.
type Result struct {
	Workers  int    `json:"workers"`
	Batch    int    `json:"batch"` // pairs in a push
	Baseline string `json:"peer"`
	Servers  int    `json:"servers"`
	Hot      int    `json:"hot"`  // hot rows, which no keys of ZeroMQ are
	Auto     bool   `json:"auto"` // Hot costs least by what is measured with another number
	// HotShare is the share of the pairs whose keys are hot.
	HotShare float64 `json:"hot_share"`

	Figures
	Min float64 `json:"min_pairs_per_s"`
	Max float64 `json:"max_pairs_per_s"`
	// NsTotal is the median of the sum of the CPU times.
	NsTotal float64 `json:"total_ns_per_pair"`

	// Ratio is Libra's rate divided by this one, as the median of the ratios within rounds; 0 if
	// Libra was not measured.
	Ratio float64 `json:"ratio"`
	// InProcess is, with an agent, the rate divided by that of the same pushes in process, and
	// InProcessTrip the round trip, as medians of the ratios within rounds; 0 where both were not
	// measured.
	InProcess     float64 `json:"in_process_ratio"`
	InProcessTrip float64 `json:"in_process_round_trip_ratio"`
	// Lossless is, of lossy workers, the rate divided by that without loss, as the median of the
	// ratios within rounds; 0 where both were not measured.
	Lossless float64 `json:"lossless_ratio"`
	// Unlogged is, of workers with a log, the rate divided by that without, as the median of the
	// ratios within rounds; 0 where both were not measured.
	Unlogged float64 `json:"unlogged_ratio"`

	Samples []Sample `json:"samples"`
}

// Figures are what is measured in a round.
type Figures struct {
	PairsPerSecond float64 `json:"pairs_per_s"` // pairs per second of all workers together
	// RoundTrip is the median time from a worker's push to its acknowledgement, without others on
	// their way; 0 where it was not measured.
	RoundTrip time.Duration `json:"round_trip_ns"`
	FrameStats
	Cost
	// Roles is present with --scale.
	Roles *Roles `json:"roles,omitempty"`
}

// Cost is CPU time in nanoseconds per pair, in parts without overlap; see
// docs/benchmarks.md.
type Cost struct {
	NsWorker     float64 `json:"worker_ns_per_pair"`
	NsKernel     float64 `json:"kernel_ns_per_pair"`
	NsAggregator float64 `json:"aggregator_ns_per_pair"`
	NsServer     float64 `json:"server_ns_per_pair"`
}

// FrameStats is how the workers share the way, and how often they send a frame again.
type FrameStats struct {
	// Fairness is Jain's index of the workers' rates: 1 if they are equal, 1/n if one of n has all.
	// R. Jain, D. Chiu, W. Hawe: A quantitative measure of fairness, DEC-TR-301, 1984.
	Fairness float64 `json:"fairness"`
	// Repeated is the share of the workers' frames that were sent again; 0 of ZeroMQ, where TCP
	// does.
	Repeated float64 `json:"repeated_share"`
	// PairsPerFrame is how many pairs were acknowledged for each frame that the workers sent; 0 of
	// ZeroMQ.
	PairsPerFrame float64 `json:"pairs_per_frame"`
}

func (c Cost) totalNs() float64 { return c.NsWorker + c.NsKernel + c.NsAggregator + c.NsServer }

// Sample is one measurement.
type Sample struct {
	Figures
	// Held is present with --scale, where it was measured.
	Held *Held `json:"held,omitempty"`
}

func (r *Report) addResult(res Result) {
	spread := experiment.Over(res.Samples, rate)
	res.Figures, res.Min, res.Max = experiment.MedianOf(res.Samples).Figures, spread.Min, spread.Max
	res.NsTotal = experiment.Over(res.Samples, func(s Sample) float64 { return s.totalNs() }).Median
	r.Results = append(r.Results, res)
}

func (r *Report) findResult(workers, batch int, baseline string) *Result {
	return experiment.Find(r.Results, func(res Result) bool {
		return res.Workers == workers && res.Batch == batch && res.Baseline == baseline
	})
}

// inProcess has the baseline with the same pushes in process for each through an agent.
var inProcess = map[string]string{Agent: Libra, AgentUnprepared: Unprepared}

func (r *Report) finishReport() {
	for i := range r.Results {
		res := &r.Results[i]
		if ours := r.findResult(res.Workers, res.Batch, Libra); ours != nil {
			res.Ratio = ratio(ours, res, rate)
			switch res.Baseline {
			case Lossy:
				res.Lossless = ratio(res, ours, rate)
			case Logged:
				res.Unlogged = ratio(res, ours, rate)
			}
		}
		if same := r.findResult(res.Workers, res.Batch, inProcess[res.Baseline]); same != nil {
			res.InProcess = ratio(res, same, rate)
			res.InProcessTrip = ratio(res, same, func(s Sample) float64 { return float64(s.RoundTrip) })
		}
	}
	r.judgeResults()
}

func rate(s Sample) float64 { return s.PairsPerSecond }

// rateOfAll is the rate for which [AutoHot] chooses: in a study of scale that of the largest number
// of workers.
func (s Sample) rateOfAll(scale bool) float64 {
	if !scale {
		return s.PairsPerSecond
	}
	rate, _ := s.Roles.limit(scaleWorkers[len(scaleWorkers)-1], 1, 1, 0)
	return rate
}

// name tells the variants of a baseline apart.
func (res Result) name() string {
	s := res.Baseline
	if !ours(s) {
		return s
	}
	switch {
	case res.Auto:
		s += fmt.Sprintf(", auto: %s hot", humanize.Comma(int64(res.Hot)))
	case res.Hot != HotKeys:
		s += fmt.Sprintf(", %s hot", humanize.Comma(int64(res.Hot)))
	}
	if res.Servers > 1 {
		s += fmt.Sprintf(", %d servers", res.Servers)
	}
	return s
}

// ratio returns the median of the ratios within rounds of a figure of two results.
func ratio(one, other *Result, figure func(Sample) float64) float64 {
	return experiment.Ratios(experiment.Pick(one.Samples, figure), experiment.Pick(other.Samples, figure)).Median
}

// judgeResults compares the results with what Libra has to reach.
func (r *Report) judgeResults() {
	want := func(what string, want, got float64) {
		r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: experiment.AtLeast(want, got)})
	}
	for _, t := range []struct {
		workers, batch int
		baseline       string
		rate           float64
	}{{4, 4096, ZeroMQHash, 4}, {4, 4096, ZeroMQTable, 1.5}, {4, 256, ZeroMQHash, 5}, {4, 32, ZeroMQHash, 2.5},
		{1, 4096, ZeroMQTable, 1.5}} {
		ours, theirs := r.findResult(t.workers, t.batch, Libra), r.findResult(t.workers, t.batch, t.baseline)
		if ours == nil || theirs == nil {
			continue
		}
		where := fmt.Sprintf("%s, batches of %d: %%s %s", english.Plural(t.workers, "worker", ""), t.batch, t.baseline)
		want(fmt.Sprintf(where, "rate of libra divided by that of"), t.rate, theirs.Ratio)
		if t.batch == 4096 && t.workers == 4 {
			want(fmt.Sprintf(where, "CPU time per pair, libra's divided into that of"), 1,
				ratio(theirs, ours, func(s Sample) float64 {
					return s.totalNs()
				}))
		}
	}
	for _, res := range r.Results {
		if res.Workers == 4 && res.Lossless > 0 {
			want(fmt.Sprintf("4 workers, batches of %d: rate with %.3g %% of the frames lost divided by that without",
				res.Batch, 100*r.Loss), 0.7, res.Lossless)
		}
		if res.Workers == 4 && res.Unlogged > 0 {
			want(fmt.Sprintf("4 workers, batches of %d: rate with logs divided by that without", res.Batch), 0.92, res.Unlogged)
		}
		if res.Workers == 1 && res.InProcess > 0 && (res.Batch == 4096 || res.Batch == 32) {
			where := fmt.Sprintf("1 worker, batches of %d: %%s of %s divided by that of %s", res.Batch, res.Baseline,
				inProcess[res.Baseline])
			want(fmt.Sprintf(where, "rate"), 0.9, res.InProcess)
			r.Targets = append(r.Targets, experiment.Target{What: fmt.Sprintf(where, "round trip"),
				Verdict: experiment.AtMost(1.1, res.InProcessTrip)})
		}
		for _, t := range []struct {
			baseline string
			rate     float64
		}{{ZeroMQHash, 2}, {ZeroMQTable, 1}} {
			if theirs := r.findResult(4, res.Batch, t.baseline); theirs != nil && res.Workers == 4 && res.Baseline == Agent {
				want(fmt.Sprintf("4 workers, batches of %d: rate of agent divided by that of %s", res.Batch, t.baseline), t.rate,
					ratio(&res, theirs, rate))
			}
		}
	}
	for i := range r.Results {
		auto := &r.Results[i]
		if best := r.bestOther(auto); auto.Auto && best != nil {
			want(fmt.Sprintf("%s, batches of %d, %s: rate divided by the best of other numbers, %s",
				english.Plural(auto.Workers, "worker", ""), auto.Batch, auto.name(), humanize.Comma(int64(best.Hot))), 0.9,
				ratio(auto, best, rate))
		}
	}
	if four, eight := r.findResult(4, 4096, Libra), r.findResult(8, 4096, Libra); four != nil && eight != nil {
		want("batches of 4096: rate of 8 workers divided by that of 4", 1, ratio(eight, four, rate))
		want("8 workers, batches of 4096: Jain's index of fairness", 0.98, eight.Fairness)
	}
	of := func(workers int) *Result {
		return experiment.Find(r.Results, func(res Result) bool {
			return res.Workers == workers && res.Batch == 4096 && res.Baseline == Libra && res.Servers == 2
		})
	}
	if four, eight := of(4), of(8); four != nil && eight != nil {
		want("2 servers, batches of 4096: rate of 8 workers divided by that of 4", 0.95, ratio(eight, four, rate))
	}
}

// bestOther returns the fastest result that differs from one in the number of hot rows alone, if
// there is one.
func (r *Report) bestOther(one *Result) (best *Result) {
	for i := range r.Results {
		res := &r.Results[i]
		if !res.Auto && res.Workers == one.Workers && res.Batch == one.Batch && res.Baseline == one.Baseline &&
			res.Servers == one.Servers && (best == nil || res.PairsPerSecond > best.PairsPerSecond) {
			best = res
		}
	}
	return best
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	if r.Figure != nil {
		r.Figure.print(out)
		experiment.PrintUnavailable(out, r.Unavailable)
		return
	}
	mega := func(pairs float64) string { return fmt.Sprintf("%.2f", pairs/1e6) }
	nanos := func(ns float64) string { return fmt.Sprintf("%.1f", ns) }
	rows := experiment.Pick(r.Results, func(res Result) []any {
		return []any{
			res.Workers, humanize.Comma(int64(res.Batch)), fmt.Sprintf("%.0f", 100*res.HotShare), res.name(),
			mega(res.PairsPerSecond), mega(res.Min), mega(res.Max), fmt.Sprintf("%.2f", res.Ratio),
			report.Cell("%.2f", res.InProcess),
			report.Cell("%.0f", float64(res.RoundTrip)/1e3), report.Cell("%.2f", res.InProcessTrip),
			fmt.Sprintf("%.2f", res.Fairness), fmt.Sprintf("%.2f", 100*res.Repeated), report.Cell("%.0f", res.PairsPerFrame),
			nanos(res.NsWorker), nanos(res.NsKernel), nanos(res.NsAggregator), nanos(res.NsServer), nanos(res.NsTotal),
		}
	})
	out.Table(fmt.Sprintf("Medians of %s of %v; the sums were right in all of them",
		english.Plural(r.Rounds, "round", ""), r.Duration), []string{
		"workers", "batch", "hot %", "baseline", "Mpairs/s", "min", "max", "libra/baseline", "/ in process",
		"round trip µs", "/ in process", "fairness", "repeated %", "pairs/frame",
		"worker ns", "kernel ns", "aggregator ns", "ps ns", "all ns",
	}, rows)
	if r.Scale != nil {
		r.Scale.print(out, r.Results)
	}
	experiment.PrintTargets(out, r.Targets)
	experiment.PrintUnavailable(out, r.Unavailable)
}

// Charts returns for each batch size the rates, with the smallest and the largest
// round (push-rate-BATCH), and the parts of the CPU time of a pair (push-cpu-BATCH).
// There is a group of bars for each number of workers.
func (r *Report) Charts() (charts []chart.Chart) {
	if r.Figure != nil {
		return r.Figure.charts()
	}
	workers := func(res Result) string { return fmt.Sprint(res.Workers) }
	baseline := Result.name
	for _, batch := range experiment.Distinct(r.Results, func(res Result) int { return res.Batch }) {
		results := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Batch != batch })
		names := experiment.Distinct(results, baseline)
		add := func(name, title, unit string, parts func(Result) []chart.Part) {
			c := chart.Chart{
				Name: fmt.Sprintf("push-%s-%d", name, batch), Title: fmt.Sprintf("pushes of %d pairs: %s", batch, title),
				X: chart.Axis{Label: "workers"}, Y: chart.Axis{Label: unit, Room: 1.35},
			}
			chart.AddBars(&c, results, workers, baseline, parts)
			charts = append(charts, c)
		}
		add("rate", "rate of all workers together", "million pairs per second", func(res Result) []chart.Part {
			return []chart.Part{{
				Name: res.name(), Colour: slices.Index(names, res.name()),
				Height: res.PairsPerSecond / 1e6, Low: res.Min / 1e6, High: res.Max / 1e6,
			}}
		})
		add("cpu", "CPU time; from left to right "+strings.Join(names, ", "), "ns per pair", func(res Result) []chart.Part {
			return []chart.Part{
				{Name: "worker", Colour: 0, Height: res.NsWorker},
				{Name: "kernel", Colour: 1, Height: res.NsKernel},
				{Name: "aggregator", Colour: 2, Height: res.NsAggregator},
				{Name: "server", Colour: 3, Height: res.NsServer},
			}
		})
	}
	if r.Scale != nil {
		charts = append(charts, r.Scale.charts()...)
	}
	return charts
}
