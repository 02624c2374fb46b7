package push

import (
	"errors"
	"slices"
	"time"
)

// ErrSums says that the sums which a peer holds are not those that were pushed.
var ErrSums = errors.New("push: wrong sums")

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"duration_ns"`
	Harvest  time.Duration `json:"harvest_ns"`
	// Results has one entry for each number of workers, batch size and peer.
	Results []Result `json:"results"`
	// Targets are what PeerLibra has to reach, as far as the run measured it.
	Targets []Target `json:"targets"`
	// Unavailable says what was not measured, and why.
	Unavailable []Unavailable `json:"unavailable"`
}

// Result is a peer's outcome. Its figures are medians over the rounds. The sums that the peer held were right in all of them.
type Result struct {
	Workers int    `json:"workers"`
	Batch   int    `json:"batch"` // pairs in a push
	Peer    string `json:"peer"`
	// HotShare is the share of the pairs whose keys are among the HotKeys hottest.
	HotShare float64 `json:"hot_share"`

	PairsPerSecond float64 `json:"pairs_per_second"` // of all workers together
	Min            float64 `json:"pairs_per_second_min"`
	Max            float64 `json:"pairs_per_second_max"`

	// CPU nanoseconds per pair, without overlap; see the package documentation.
	NsWorker     float64 `json:"ns_worker"`
	NsKernel     float64 `json:"ns_kernel"`
	NsAggregator float64 `json:"ns_aggregator"`
	NsServer     float64 `json:"ns_ps"`
	// NsTotal is the median of their sum.
	NsTotal float64 `json:"ns_total"`

	// Ratio is PeerLibra's rate divided by this peer's, of the medians; 0 if
	// PeerLibra was not measured.
	Ratio float64 `json:"ratio"`

	Samples []Sample `json:"samples"`
}

// Sample is one measurement.
type Sample struct {
	PairsPerSecond float64 `json:"pairs_per_second"`
	NsWorker       float64 `json:"ns_worker"`
	NsKernel       float64 `json:"ns_kernel"`
	NsAggregator   float64 `json:"ns_aggregator"`
	NsServer       float64 `json:"ns_ps"`
}

func (s Sample) total() float64 { return s.NsWorker + s.NsKernel + s.NsAggregator + s.NsServer }

// Target is what PeerLibra has to reach.
type Target struct {
	What string  `json:"what"`
	Want float64 `json:"want"` // at least
	Got  float64 `json:"got"`
	Met  bool    `json:"met"`
}

// Unavailable is a peer that was not measured.
type Unavailable struct {
	Peer    string `json:"peer"`
	Reason  string `json:"reason"`
	Install string `json:"install"` // what makes it available
}

func newReport(cfg Config) *Report {
	return &Report{
		Rounds: cfg.Rounds, Duration: cfg.Duration, Harvest: cfg.Harvest,
		Results: []Result{}, Targets: []Target{}, Unavailable: []Unavailable{},
	}
}

// add adds a result whose samples are there.
func (r *Report) add(res Result) {
	figure := func(of func(Sample) float64) []float64 {
		values := make([]float64, len(res.Samples))
		for i, s := range res.Samples {
			values[i] = of(s)
		}
		return values
	}
	rates := figure(func(s Sample) float64 { return s.PairsPerSecond })
	res.PairsPerSecond, res.Min, res.Max = median(rates), slices.Min(rates), slices.Max(rates)
	res.NsWorker = median(figure(func(s Sample) float64 { return s.NsWorker }))
	res.NsKernel = median(figure(func(s Sample) float64 { return s.NsKernel }))
	res.NsAggregator = median(figure(func(s Sample) float64 { return s.NsAggregator }))
	res.NsServer = median(figure(func(s Sample) float64 { return s.NsServer }))
	res.NsTotal = median(figure(Sample.total))
	r.Results = append(r.Results, res)
}

// find returns a result, or nil.
func (r *Report) find(workers, batch int, peer string) *Result {
	i := slices.IndexFunc(r.Results, func(res Result) bool {
		return res.Workers == workers && res.Batch == batch && res.Peer == peer
	})
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// finish completes a report from its results.
func (r *Report) finish() {
	for i := range r.Results {
		res := &r.Results[i]
		if ours := r.find(res.Workers, res.Batch, PeerLibra); ours != nil {
			res.Ratio = quotient(ours.PairsPerSecond, res.PairsPerSecond)
		}
	}
	r.judge()
}

// median returns the middle of the values, or the mean of the two middle ones.
// There must be one at least.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quotient is a/b, and 0 where b is: JSON has no infinity.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
