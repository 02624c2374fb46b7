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

// Phase is the run without or with the flood.
type Phase struct {
	Flood bool `json:"flood"`
	// FloodFrames were sent in FloodSeconds. Dropped and Refused is what the
	// aggregator had counted when the jobs had pushed, for Seconds each.
	FloodFrames  uint64  `json:"flood_frames"`
	FloodSeconds float64 `json:"flood_seconds"`
	Dropped      uint64  `json:"dropped"`
	Refused      uint64  `json:"refused"`
	Seconds      float64 `json:"seconds"`
	Jobs         []Job   `json:"jobs"`
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

// Deviation returns by what share of the setting the mean interval of a job is
// off, at worst.
func (r *Report) Deviation() float64 {
	worst := 0.0
	for _, run := range r.Phases {
		for _, j := range run.Jobs {
			worst = max(worst, math.Abs(float64(j.Mean)/float64(r.Harvest)-1))
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
