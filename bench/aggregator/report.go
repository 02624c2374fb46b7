package aggregator

import (
	"fmt"

	"github.com/dustin/go-humanize"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/wire"
)

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Rounds int `json:"rounds"`
	// Results has one entry for each job and frame length of Cost.
	Results []Result `json:"results"`
	// Targets are what the XDP program has to reach, of what the run measured.
	Targets []harness.Target `json:"targets"`
	// Rates and Systems are of Throughput.
	Rates   []Rate   `json:"rates"`
	Systems []System `json:"systems"`
	// Negotiations has one entry for each backend, number of workers and
	// arithmetic.
	Negotiations []Delay `json:"negotiations"`
	// Unavailable is what was not measured, and why.
	Unavailable []harness.Unavailable `json:"unavailable"`
}

// Result is what a frame costs in one job.
type Result struct {
	Arithmetic string `json:"arithmetic"`
	Mode       string `json:"mode"`
	Stripes    int    `json:"stripes"` // of a frame
	Hot        int    `json:"hot"`     // parameters of the job
	Pairs      int    `json:"pairs"`   // of a frame

	// Medians over the rounds. Min and Max are of NsPerPair.
	NsPerFrame float64 `json:"ns_per_frame"`
	NsPerPair  float64 `json:"ns_per_pair"`
	Min        float64 `json:"min"`
	Max        float64 `json:"max"`

	Samples []float64 `json:"samples_ns_per_frame"`
}

// Rate is how many pairs the XDP program adds in a second on one CPU, in frames
// of the greatest length.
type Rate struct {
	Distribution string         `json:"distribution"` // of ranks
	Arithmetic   string         `json:"arithmetic"`
	Hot          int            `json:"hot"`
	Pairs        harness.Spread `json:"pairs_per_second"`
}

// System is aggregator and parameter server together, if each has a CPU.
type System struct {
	Distribution string `json:"distribution"` // of all keys
	Hot          int    `json:"hot"`          // 0: the server alone
	// HotShare is the share of the pairs whose key is hot.
	HotShare float64 `json:"hot_share"`
	// Server is the server's rate on the pairs that are not hot, in pairs a second.
	Server harness.Spread `json:"server_pairs_per_second"`
	// Bound is min(A/h, S/(1-h)), in pairs a second, with exact arithmetic.
	Bound float64 `json:"bound_pairs_per_second"`
	// Speedup is Bound divided by that of the server alone; Relative, by that
	// with 30,000 hot parameters, as in the paper's figures; 0 without that. Both
	// are medians of the ratios within each round.
	Speedup  float64 `json:"speedup"`
	Relative float64 `json:"relative"`

	Samples []float64 `json:"samples_bound"`
}

// Delay is what an iteration takes that reduces a vector.
type Delay struct {
	Backend    string `json:"backend"`
	Workers    int    `json:"workers"`
	Arithmetic string `json:"arithmetic"`
	Parameters int    `json:"parameters"`
	Iterations int    `json:"iterations"` // in all rounds

	// In microseconds: medians of a round's iterations of all workers, and their
	// spread over the rounds. Negotiate is 0 where there is nothing to negotiate.
	Negotiate harness.Spread `json:"negotiate_us"`
	Reduce    harness.Spread `json:"reduce_us"`
	Total     harness.Spread `json:"total_us"`
	// Slowest is the 99th percentile of the negotiations of all rounds.
	Slowest float64 `json:"negotiate_p99_us"`
}

func newReport(rounds int) *Report {
	return &Report{
		Rounds: rounds, Results: []Result{}, Targets: []harness.Target{}, Rates: []Rate{}, Systems: []System{},
		Negotiations: []Delay{}, Unavailable: []harness.Unavailable{},
	}
}

// add adds a result whose samples are there.
func (r *Report) add(res Result) {
	s := harness.SpreadOf(res.Samples)
	pairs := float64(res.Pairs)
	res.NsPerFrame, res.NsPerPair, res.Min, res.Max = s.Median, s.Median/pairs, s.Min/pairs, s.Max/pairs
	r.Results = append(r.Results, res)
}

// find returns a result, or nil.
func (r *Report) find(a plane.Arithmetic, m plane.Mode, stripes, hot int) *Result {
	return harness.Find(r.Results, func(res Result) bool {
		return res.Arithmetic == a.String() && res.Mode == m.String() && res.Stripes == stripes && res.Hot == hot
	})
}

// finish completes a report from what was measured.
func (r *Report) finish() {
	r.judge()
	of := func(distribution string, hot int) []float64 {
		if s := harness.Find(r.Systems, func(s System) bool { return s.Distribution == distribution && s.Hot == hot }); s != nil {
			return s.Samples
		}
		return nil
	}
	for i := range r.Systems {
		s := &r.Systems[i]
		s.Bound = harness.Median(s.Samples)
		s.Speedup = harness.Ratios(s.Samples, of(s.Distribution, 0)).Median
		s.Relative = harness.Ratios(s.Samples, of(s.Distribution, paperHot)).Median
	}
}

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
	exactPair   = 4   // of a frame of 10 stripes
	lutPair     = 25  // likewise
	exactFrame  = 200 // of one stripe
	fixedFactor = 1   // of exact's time
)

// judge compares the results with what the XDP program has to reach.
func (r *Report) judge() {
	want := func(hot int, what string, want, got float64) {
		what = fmt.Sprintf("combine, %s hot: %s", humanize.Comma(int64(hot)), what)
		r.Targets = append(r.Targets, harness.Target{What: what, Verdict: harness.AtMost(want, got)})
	}
	for _, hot := range r.hotCounts() {
		longest := func(a plane.Arithmetic) *Result { return r.find(a, plane.Combine, wire.MaxStripes, hot) }
		exact, lut, fixed := longest(plane.Exact), longest(plane.LUT), longest(plane.Fixed)
		if exact != nil {
			want(hot, "exact, 10 stripes, ns a pair", exactPair, exact.NsPerPair)
		}
		if one := r.find(plane.Exact, plane.Combine, 1, hot); one != nil {
			want(hot, "exact, 1 stripe, ns a frame", exactFrame, one.NsPerFrame)
		}
		if exact != nil && fixed != nil {
			want(hot, "fixed, 10 stripes, time divided by that of exact", fixedFactor, harness.Ratios(fixed.Samples, exact.Samples).Median)
		}
		if lut != nil {
			want(hot, "lut, 10 stripes, ns a pair", lutPair, lut.NsPerPair)
		}
	}
}

// hotCounts returns the numbers of hot parameters in the order of the results.
func (r *Report) hotCounts() []int {
	return harness.Distinct(r.Results, func(res Result) int { return res.Hot })
}
