package engine

import "time"

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Machine  Machine       `json:"machine"`
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"duration_ns"`
	// Results has one entry for each test, size and peer that was measured.
	Results []Result `json:"results"`
	// Ratios compare PeerLibra with each other peer.
	Ratios []Ratio `json:"ratios"`
	// Targets are what PeerLibra has to reach, as far as the run measured it.
	Targets []Target `json:"targets"`
	// Unavailable says what was not measured, and why.
	Unavailable []Unavailable `json:"unavailable"`
}

// Machine is where the figures come from.
type Machine struct {
	Kernel    string `json:"kernel"`
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	GoVersion string `json:"go"`
}

// Result is one peer's outcome in one test at one size. Its figures are medians over the rounds.
type Result struct {
	Test Test   `json:"test"`
	Size int    `json:"size"` // bytes of a frame
	Peer string `json:"peer"`

	PPS    float64 `json:"pps"` // frames per second; in request-response, exchanges
	PPSMin float64 `json:"pps_min"`
	PPSMax float64 `json:"pps_max"`

	// CPU time per frame in nanoseconds: of the tested program in user space,
	// in the kernel for its end of the cable, and for the opposite end.
	NsUser     float64 `json:"ns_user"`
	NsKernel   float64 `json:"ns_kernel"`
	NsOpposite float64 `json:"ns_opposite"`

	// Round-trip times in microseconds; null in tests that have none.
	P50us *float64 `json:"p50_us"`
	P99us *float64 `json:"p99_us"`

	// Drops are frames that were lost, by cause, over all rounds: counters of the
	// tested program's own, of its sockets, and of both ends of the cable.
	Drops map[string]uint64 `json:"drops"`
	// Samples are the rounds.
	Samples []Sample `json:"samples"`
}

// Sample is one measurement.
type Sample struct {
	PPS        float64  `json:"pps"`
	NsUser     float64  `json:"ns_user"`
	NsKernel   float64  `json:"ns_kernel"`
	NsOpposite float64  `json:"ns_opposite"`
	P50us      *float64 `json:"p50_us,omitempty"`
	P99us      *float64 `json:"p99_us,omitempty"`
	drops      map[string]uint64
}

// Ratio compares PeerLibra with a peer. Every figure is PeerLibra's divided by the
// peer's: above 1 is better in PPS, below 1 in latency.
type Ratio struct {
	Test Test   `json:"test"`
	Size int    `json:"size"`
	Peer string `json:"peer"`
	// OfMedians is the ratio of the medians of the rates. Paired is the median of
	// the ratios within each round, with the smallest and the largest of them.
	OfMedians float64 `json:"pps_of_medians"`
	Paired    float64 `json:"pps_paired"`
	PairedMin float64 `json:"pps_paired_min"`
	PairedMax float64 `json:"pps_paired_max"`
	// Ratios of the medians of the latencies; null in tests that have none.
	P50 *float64 `json:"p50"`
	P99 *float64 `json:"p99"`
}

// Target is a ratio that PeerLibra has to reach.
type Target struct {
	Test   Test    `json:"test"`
	Size   int     `json:"size"`
	Peer   string  `json:"peer"`
	Figure string  `json:"figure"` // "pps", "p50" or "p99"
	Want   float64 `json:"want"`   // at least, for pps; at most, for latencies
	Got    float64 `json:"got"`    // ratio of medians
	Met    bool    `json:"met"`
}

// Unavailable is a peer, or one of its tests or sizes, that was not measured.
type Unavailable struct {
	Peer    string `json:"peer"`
	Test    Test   `json:"test,omitempty"` // empty: in no test
	Size    int    `json:"size,omitempty"` // 0: at no size
	Reason  string `json:"reason"`
	Install string `json:"install,omitempty"` // what makes it available, if anything does
}

// finish completes a report from its results and ratios.
func (r *Report) finish() { r.Targets = judge(r.Ratios) }
