package tenants

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Defaults of [Config].
const (
	DefaultDuration = 3 * time.Second
	DefaultHarvest  = 20 * time.Millisecond
)

// Config says what to measure.
type Config struct {
	// Duration of each of the two runs; 0 means DefaultDuration.
	Duration time.Duration
	// Harvest is the time between two harvests that the jobs ask for; 0 means
	// DefaultHarvest.
	Harvest time.Duration
	// ThreadedNAPI is the switch's setting of that name.
	ThreadedNAPI bool
	// PeerCommand starts a process of the measurement; nil means this
	// executable's hidden command.
	PeerCommand []string
	// Progress, if set, is called before each run.
	Progress func(done, total int, what string)
}

func (c Config) withDefaults() (Config, error) {
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Harvest == 0 {
		c.Harvest = DefaultHarvest
	}
	if c.Harvest < time.Millisecond || c.Duration < 10*c.Harvest {
		return c, fmt.Errorf("tenants: a harvest every %v for %v: at least 1ms, and ten harvests, are needed", c.Harvest, c.Duration)
	}
	return c, nil
}

// Report is what was measured.
type Report struct {
	CPUs         int           `json:"cpus"`
	Harvest      time.Duration `json:"harvest_ns"` // asked for
	ThreadedNAPI bool          `json:"threaded_napi"`
	Phases       []Phase       `json:"phases"`
}

// Phase is one of the two runs.
type Phase struct {
	Disturbed bool `json:"disturbed"`
	// FloodFrames were sent in FloodSeconds. Dropped, Refused and Throttled is
	// what the aggregator had counted when the tenants had pushed, for Seconds
	// each.
	FloodFrames  uint64  `json:"flood_frames"`
	FloodSeconds float64 `json:"flood_seconds"`
	Dropped      uint64  `json:"dropped"`
	Refused      uint64  `json:"refused"`
	Throttled    uint64  `json:"throttled"`
	// Joins and Jobs are how many senders came and went, and how many jobs were
	// created and removed, in ChurnSeconds.
	Joins        uint64  `json:"joins"`
	Jobs         uint64  `json:"jobs"`
	ChurnSeconds float64 `json:"churn_seconds"`

	Seconds float64 `json:"seconds"`
	Tenants []Job   `json:"tenants"`
}

// Job is a job whose sums were exact.
type Job struct {
	Job        int    `json:"job"`
	Mode       string `json:"mode"`
	Arithmetic string `json:"arithmetic"`
	Pairs      uint64 `json:"pairs"` // pushed, and found in the sums
	Harvests   uint64 `json:"harvests"`
	// Intervals between the starts of harvests, as the switch measured them.
	Last time.Duration `json:"last_ns"`
	Mean time.Duration `json:"mean_ns"`
	Max  time.Duration `json:"max_ns"`
	// Quantiles of the times between two harvests' arrivals at the job's server.
	P50 time.Duration `json:"p50_ns"`
	P95 time.Duration `json:"p95_ns"`
	// Held is the mean time from a harvest's start until the server had
	// applied it.
	Held time.Duration `json:"held_ns"`
}

// Deviation returns by what share of the setting the mean interval of a job, or
// the 95th percentile, is off, at worst.
func (r *Report) Deviation() float64 {
	worst := 0.0
	for _, run := range r.Phases {
		for _, j := range run.Tenants {
			for _, d := range []time.Duration{j.Mean, j.P95} {
				worst = max(worst, math.Abs(float64(d)/float64(r.Harvest)-1))
			}
		}
	}
	return worst
}

// quantile returns the q-quantile of durations, which it sorts.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}
