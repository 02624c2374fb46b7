// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Rounds int `json:"rounds"`
	// Results has one entry for each job and frame length of Cost.
	Results []Result `json:"results"`
	// Targets are what the XDP program has to reach, of what the run measured.
	Targets []experiment.Target `json:"targets"`
	// Rates and Systems are of Throughput.
	Rates   []Rate   `json:"rates"`
	Systems []System `json:"systems"`
	// Negotiations has one entry for each backend, number of workers and
	// arithmetic.
	Negotiations []Delay `json:"negotiations"`
	// Unavailable is what was not measured, and why.
	Unavailable []experiment.Unavailable `json:"unavailable"`
}

// Result is what a frame costs in one job.
type Result struct {
	Arithmetic string `json:"arithmetic"`
	Mode       string `json:"mode"`
	Stripes    int    `json:"stripes"` // stripes in a frame
	Hot        int    `json:"hot"`     // parameters of the job
	Pairs      int    `json:"pairs"`   // pairs in a frame

	// Medians over the rounds. Min and Max are of NsPerPair.
	NsPerFrame float64 `json:"ns_per_frame"`
	NsPerPair  float64 `json:"ns_per_pair"`
	Min        float64 `json:"min_ns_per_pair"`
	Max        float64 `json:"max_ns_per_pair"`

	Samples []float64 `json:"samples_ns_per_frame"`
}

// Rate is how many pairs the XDP program adds in a second on one CPU, in frames
// of the greatest length.
type Rate struct {
	Distribution string            `json:"distribution"` // distribution of ranks
	Arithmetic   string            `json:"arithmetic"`
	Hot          int               `json:"hot"`
	Pairs        experiment.Spread `json:"pairs_per_s"`
}

// System is aggregator and parameter server together, if each has a CPU.
type System struct {
	Distribution string `json:"distribution"` // distribution of all keys
	Hot          int    `json:"hot"`          // 0: the server alone
	// HotShare is the share of the pairs whose key is hot.
	HotShare float64 `json:"hot_share"`
	// Server is the server's rate on the pairs that are not hot, in pairs a second.
	Server experiment.Spread `json:"server_pairs_per_s"`
	// Bound is min(A/h, S/(1-h)), in pairs a second, with exact arithmetic.
	Bound float64 `json:"bound_pairs_per_s"`
	// Speedup is Bound divided by that of the server alone; Relative, by that
	// with 30,000 hot parameters, as in the paper's figures; 0 without that. Both
	// are medians of the ratios within each round.
	Speedup  float64 `json:"speedup"`
	Relative float64 `json:"relative"`

	// Harvest is the CPU time of a harvest at aggregator and server together, from slots to weights,
	// and Sums how many it has.
	Harvest experiment.Spread `json:"harvest_ns"`
	Sums    float64           `json:"harvest_sums"`
	// Harvested is Bound if aggregator and server lose as much of each period as both together take
	// for a harvest: a lower bound. HarvestedSpeedup is Harvested divided by the rate of the server
	// alone, which has no harvests.
	Harvested        float64 `json:"harvested_pairs_per_s"`
	HarvestedSpeedup float64 `json:"harvested_speedup"`

	Samples          []float64 `json:"samples_bound_pairs_per_s"`
	HarvestedSamples []float64 `json:"samples_harvested_pairs_per_s"`
}

// Delay is what an iteration takes that reduces a vector.
type Delay struct {
	Backend    string `json:"backend"`
	Workers    int    `json:"workers"`
	Arithmetic string `json:"arithmetic"`
	Parameters int    `json:"parameters"`
	Iterations int    `json:"iterations"` // iterations in all rounds

	// In nanoseconds: medians of a round's iterations of all workers, and their
	// spread over the rounds. Negotiate is 0 where there is nothing to negotiate.
	Negotiate experiment.Spread `json:"negotiate_ns"`
	Reduce    experiment.Spread `json:"reduce_ns"`
	Total     experiment.Spread `json:"total_ns"`
	// Slowest is the 99th percentile of the negotiations of all rounds.
	Slowest float64 `json:"negotiate_p99_ns"`
}

func (r *Report) add(res Result) {
	s := experiment.SpreadOf(res.Samples)
	pairs := float64(res.Pairs)
	res.NsPerFrame, res.NsPerPair, res.Min, res.Max = s.Median, s.Median/pairs, s.Min/pairs, s.Max/pairs
	r.Results = append(r.Results, res)
}

func (r *Report) find(a aggregator.Arithmetic, m aggregator.Mode, stripes, hot int) *Result {
	return experiment.Find(r.Results, func(res Result) bool {
		return res.Arithmetic == a.String() && res.Mode == m.String() && res.Stripes == stripes && res.Hot == hot
	})
}

func (r *Report) finish() {
	r.judge()
	of := func(distribution string, hot int) []float64 {
		if s := experiment.Find(r.Systems, func(s System) bool {
			return s.Distribution == distribution && s.Hot == hot
		}); s != nil {
			return s.Samples
		}
		return nil
	}
	for i := range r.Systems {
		s := &r.Systems[i]
		s.Bound = experiment.Median(s.Samples)
		s.Speedup = experiment.Ratios(s.Samples, of(s.Distribution, 0)).Median
		s.Relative = experiment.Ratios(s.Samples, of(s.Distribution, paperHot)).Median
		s.Harvested = experiment.Median(s.HarvestedSamples)
		s.HarvestedSpeedup = experiment.Ratios(s.HarvestedSamples, of(s.Distribution, 0)).Median
	}
	for _, t := range speedups {
		best := 0.0
		for _, s := range r.Systems {
			if s.Distribution == t.Distribution {
				best = max(best, s.HarvestedSpeedup)
			}
		}
		if best > 0 {
			r.Targets = append(r.Targets, experiment.Target{
				What:    t.Distribution + ": aggregator and server together, harvests included, by the server alone, best number of hot parameters",
				Verdict: experiment.AtLeast(t.Want, best),
			})
		}
	}
}

// speedups are what the best number of hot parameters has to reach.
var speedups = []struct {
	Distribution string
	Want         float64
}{{"Zipf 0.83", 5}, {"Zipf 0.97", 7}}

// bound returns the rate of an aggregator that takes a share of all pairs and a
// server that takes the others.
func bound(share, aggregator, server float64) float64 {
	if share == 0 {
		return server
	}
	return min(aggregator/share, server/(1-share))
}

// Targets of combine mode, in nanoseconds.
const (
	exactPair   = 4   // in a frame of 10 stripes
	lutPair     = 25  // in a frame of 10 stripes
	exactFrame  = 200 // of one stripe
	fixedFactor = 1   // of exact's time
)

// judge compares the results with what the XDP program has to reach.
func (r *Report) judge() {
	want := func(hot int, what string, want, got float64) {
		what = fmt.Sprintf("combine, %s hot: %s", humanize.Comma(int64(hot)), what)
		r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: experiment.AtMost(want, got)})
	}
	for _, hot := range experiment.Distinct(r.Results, func(res Result) int { return res.Hot }) {
		longest := func(a aggregator.Arithmetic) *Result { return r.find(a, aggregator.Combine, wire.DefaultStripes, hot) }
		exact, lut, fixed := longest(aggregator.Exact), longest(aggregator.LUT), longest(aggregator.Fixed)
		if exact != nil {
			want(hot, "exact, 10 stripes, ns a pair", exactPair, exact.NsPerPair)
		}
		if one := r.find(aggregator.Exact, aggregator.Combine, 1, hot); one != nil {
			want(hot, "exact, 1 stripe, ns a frame", exactFrame, one.NsPerFrame)
		}
		if exact != nil && fixed != nil {
			want(hot, "fixed, 10 stripes, time divided by that of exact", fixedFactor,
				experiment.Ratios(fixed.Samples, exact.Samples).Median)
		}
		if lut != nil {
			want(hot, "lut, 10 stripes, ns a pair", lutPair, lut.NsPerPair)
		}
	}
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes what was measured for people, the paper's figures beside ours.
func (r *Report) Print(out *report.Printer) {
	if len(r.Results) > 0 {
		header := []string{"mode", "hot", "stripes"}
		for _, n := range experiment.Distinct(r.Results, func(res Result) string { return res.Arithmetic }) {
			header = append(header, n+", ns a frame", "ns a pair")
		}
		out.Table(fmt.Sprintf("Cost of the XDP program, median of %s (smallest-largest)",
			english.Plural(r.Rounds, "round", "")), header, experiment.Rows(r.Results,
			func(res Result) []any { return []any{res.Mode, humanize.Comma(int64(res.Hot)), res.Stripes} },
			func(res Result) []any {
				return []any{fmt.Sprintf("%.0f", res.NsPerFrame), fmt.Sprintf("%.2f (%.2f-%.2f)", res.NsPerPair, res.Min, res.Max)}
			}))
		out.Note("The program alone, in the kernel's test run: checksums, duplicate filter, additions and answer, without a driver. " +
			"Every frame has all lanes full.")
	}
	experiment.PrintTargets(out, r.Targets)
	if len(r.Rates) > 0 {
		names := experiment.Distinct(r.Rates, func(q Rate) string { return q.Arithmetic })
		out.Table("Million pairs a second of the XDP program on one CPU, frames of 10 stripes, median (smallest-largest)",
			append([]string{"ranks", "hot"}, names...), experiment.Rows(r.Rates,
				func(q Rate) []any { return []any{q.Distribution, humanize.Comma(int64(q.Hot))} },
				func(q Rate) []any { return []any{millions(q.Pairs)} }))
	}
	if len(r.Systems) > 0 {
		out.Table("Aggregator and parameter server together, million pairs a second, exact arithmetic (Figures 13 and 14)",
			[]string{"keys", "hot", "hot share", "server on the rest", "together", "of server alone",
				fmt.Sprintf("of %s hot", humanize.Comma(paperHot)), "sums in a harvest", "ms a harvest",
				"with harvests", "of server alone"}, experiment.Pick(r.Systems, System.row))
		out.Note("%s", r.paperOnThroughput())
	}
	if len(r.Negotiations) > 0 {
		out.Table("Delay of an iteration, µs (Figure 17), median (smallest-largest round)",
			[]string{"backend", "workers", "arithmetic", "iterations", "negotiation", "p99", "reduction", "iteration"},
			experiment.Pick(r.Negotiations, Delay.row))
		out.Note("%s", r.paperOnDelay())
	}
	experiment.PrintUnavailable(out, r.Unavailable)
}

func (r *Report) paperOnThroughput() string {
	var gains, ours []string
	for _, p := range paperGain {
		gains = append(gains, fmt.Sprintf("%.1f %% for %s", 100*(p.Gain-1), p.Task))
	}
	for _, s := range r.Systems {
		if s.Hot == 2*paperHot && s.Relative > 0 {
			ours = append(ours, fmt.Sprintf("%+.1f %% for %s", 100*(s.Relative-1), s.Distribution))
		}
	}
	text := fmt.Sprintf("The server's rate is that of its store on COLD frames of the pairs that are not hot; together, each has a CPU, "+
		"and the slower one sets the rate. There is no network in it. Harvests take of each as much as both spend on them. The paper has 1.5 to 4 times ps-lite's rate; its figures are normalised; its text gives these numbers only: "+
		"60,000 instead of 30,000 hot parameters bring %s (SwitchML with twice its memory reaches %.1f %% of Libra).",
		strings.Join(gains, " and "), 100*paperSwitchML)
	if ours != nil {
		text += " Ours bring " + strings.Join(ours, " and ") + "."
	}
	return text
}

func (r *Report) paperOnDelay() string {
	var paper []string
	for _, p := range paperDelay {
		paper = append(paper, fmt.Sprintf("%.0f ms with %d workers", p.Delay, p.Workers))
	}
	return fmt.Sprintf("All workers, and the aggregator, share this machine's CPUs; the vector has %s parameters. "+
		"Each figure is the median over workers and iterations. The paper's text has an extra delay of over %s for SwitchML's negotiation, "+
		"and does not say how its workers exchange what they negotiate; ours send one frame each and get one answer, on the data path.",
		humanize.Comma(int64(r.Negotiations[0].Parameters)), strings.Join(paper, " and of "))
}

// paperHot is the number of hot parameters of the paper's default configuration
// (§5.2), which its figures are normalised by.
const paperHot = 30_000

// paperGain is what twice the hot parameters, 60,000, bring the paper's two
// production tasks: "the improvement is 7% for OA and 1.7% for SE" (§5.2,
// on Figure 13). The text has no other number from Figures 13 and 14 for
// Libra, and no throughput that is not normalised.
var paperGain = []struct {
	Task string
	Gain float64
}{{"OA", 1.07}, {"SE", 1.017}}

// paperSwitchML is SwitchML with twice its memory, by Libra's default
// configuration (the paper's §5.2, on Figure 13).
const paperSwitchML = 0.456

// paperDelay is what the negotiation of a scale adds to an iteration, by number
// of workers, in milliseconds: "over 100ms when only 8 workers are used; the
// extra delay increases to 130ms when 32 workers are used" (the paper's §5.5, on
// Figure 17).
var paperDelay = []struct {
	Workers int
	Delay   float64
}{{8, 100}, {32, 130}}

func (s System) row() []any {
	return []any{
		s.Distribution, humanize.Comma(int64(s.Hot)), fmt.Sprintf("%.1f %%", 100*s.HotShare), millions(s.Server),
		fmt.Sprintf("%.0f", s.Bound/1e6), fmt.Sprintf("%.2f", s.Speedup), report.Cell("%.2f", s.Relative),
		report.Cell("%.0f", s.Sums), report.Cell("%.1f", s.Harvest.Median/1e6),
		fmt.Sprintf("%.0f", s.Harvested/1e6), fmt.Sprintf("%.2f", s.HarvestedSpeedup),
	}
}

func (d Delay) row() []any {
	return []any{
		d.Backend, d.Workers, d.Arithmetic, d.Iterations, micros(d.Negotiate), report.Cell("%.0f", d.Slowest/1e3),
		micros(d.Reduce), micros(d.Total),
	}
}

func millions(s experiment.Spread) string { return spread(s, 1e6) }

func micros(s experiment.Spread) string { return spread(s, 1e3) }

// spread is empty for what was not measured.
func spread(s experiment.Spread, unit float64) string {
	if s == (experiment.Spread{}) {
		return ""
	}
	return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median/unit, s.Min/unit, s.Max/unit)
}
