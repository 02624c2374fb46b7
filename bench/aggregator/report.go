package aggregator

import (
	"slices"

	plane "github.com/libra-ina/libra/aggregator"
)

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Rounds int `json:"rounds"`
	// Results has one entry for each job and frame length of Cost.
	Results []Result `json:"results"`
	// Targets are what the XDP program has to reach, as far as the run measured it.
	Targets []Target `json:"targets"`
	// Rates and Systems are of Throughput.
	Rates   []Rate   `json:"rates"`
	Systems []System `json:"systems"`
	// Negotiations has one entry for each backend, number of workers and
	// arithmetic.
	Negotiations []Delay `json:"negotiations"`
	// Unavailable says what was not measured, and why.
	Unavailable []Unavailable `json:"unavailable"`
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
	Distribution string `json:"distribution"` // of ranks
	Arithmetic   string `json:"arithmetic"`
	Hot          int    `json:"hot"`
	Pairs        Spread `json:"pairs_per_second"`
}

// System is aggregator and parameter server together, if each has a CPU.
type System struct {
	Distribution string `json:"distribution"` // of all keys
	Hot          int    `json:"hot"`          // 0: the server alone
	// HotShare is the share of the pairs whose key is hot.
	HotShare float64 `json:"hot_share"`
	// Server is the server's rate on the pairs that are not hot, in pairs a second.
	Server Spread `json:"server_pairs_per_second"`
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
	Negotiate Spread `json:"negotiate_us"`
	Reduce    Spread `json:"reduce_us"`
	Total     Spread `json:"total_us"`
	// Slowest is the 99th percentile of the negotiations of all rounds.
	Slowest float64 `json:"negotiate_p99_us"`
}

// Target is what the XDP program has to reach.
type Target struct {
	What string  `json:"what"`
	Want float64 `json:"want"` // at most
	Got  float64 `json:"got"`
	Met  bool    `json:"met"`
}

// Unavailable is something that was not measured.
type Unavailable struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

func newReport(rounds int) *Report {
	return &Report{
		Rounds: rounds, Results: []Result{}, Targets: []Target{}, Rates: []Rate{}, Systems: []System{},
		Negotiations: []Delay{}, Unavailable: []Unavailable{},
	}
}

// add adds a result whose samples are there.
func (r *Report) add(res Result) {
	s := spreadOf(res.Samples)
	pairs := float64(res.Pairs)
	res.NsPerFrame, res.NsPerPair, res.Min, res.Max = s.Median, s.Median/pairs, s.Min/pairs, s.Max/pairs
	r.Results = append(r.Results, res)
}

// find returns a result, or nil.
func (r *Report) find(a plane.Arithmetic, m plane.Mode, stripes, hot int) *Result {
	i := slices.IndexFunc(r.Results, func(res Result) bool {
		return res.Arithmetic == a.String() && res.Mode == m.String() && res.Stripes == stripes && res.Hot == hot
	})
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// finish completes a report from what was measured.
func (r *Report) finish() {
	r.judge()
	of := func(distribution string, hot int) []float64 {
		for _, s := range r.Systems {
			if s.Distribution == distribution && s.Hot == hot {
				return s.Samples
			}
		}
		return nil
	}
	for i := range r.Systems {
		s := &r.Systems[i]
		s.Bound = median(s.Samples)
		s.Speedup = paired(s.Samples, of(s.Distribution, 0))
		s.Relative = paired(s.Samples, of(s.Distribution, paperHot))
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
