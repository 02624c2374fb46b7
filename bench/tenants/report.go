// SPDX-License-Identifier: Apache-2.0

package tenants

import (
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPUs         int           `json:"cpus"`
	Harvest      time.Duration `json:"harvest_ns"` // asked for
	ThreadedNAPI bool          `json:"threaded_napi"`
	Phases       []Phase       `json:"phases"`
}

// Phase is one of the two runs.
type Phase struct {
	Disturbed bool `json:"disturbed"`
	Flood
	Dropped   uint64 `json:"dropped"`
	Refused   uint64 `json:"refused"`
	Throttled uint64 `json:"throttled"`
	Churn
	Seconds float64 `json:"duration_s"`
	Tenants []Job   `json:"tenants"`
}

// Flood is what the flooder sent.
type Flood struct {
	// FloodFrames were sent in FloodSeconds. Dropped, Refused and Throttled is
	// what the aggregator had counted when the tenants had pushed, for Seconds
	// each.
	FloodFrames  uint64  `json:"flood_frames"`
	FloodSeconds float64 `json:"flood_s"`
}

// Churn is what came and went.
type Churn struct {
	// Joins and Jobs are the numbers of senders that came and went, and of jobs
	// that were created and removed, in ChurnSeconds.
	Joins        uint64  `json:"joins"`
	Jobs         uint64  `json:"jobs"`
	ChurnSeconds float64 `json:"churn_s"`
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

// Deviation returns the largest share of the setting by which the mean interval
// of a job, or the 95th percentile, is off.
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

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	si := func(n, per float64) string { return humanize.SIWithDigits(n/per, 0, "") }
	var rows [][]any
	for _, run := range r.Phases {
		flood := "none"
		if run.Disturbed {
			flood = si(float64(run.FloodFrames), run.FloodSeconds) + "frames/s"
		}
		for _, j := range run.Tenants {
			rows = append(rows, []any{
				flood, fmt.Sprintf("%d: %s, %s", j.Job, j.Mode, j.Arithmetic),
				humanize.SIWithDigits(float64(j.Pairs)/run.Seconds, 2, ""), j.Harvests,
				milliseconds(j.Mean), milliseconds(j.Max), milliseconds(j.P50), milliseconds(j.P95), milliseconds(j.Held),
			})
		}
	}
	title := fmt.Sprintf("Harvest every %v, in ms; all sums exact; %d CPUs for everything; threaded NAPI: %v", r.Harvest,
		r.CPUs, r.ThreadedNAPI)
	out.Table(title, []string{"flood", "job", "pairs/s", "harvests", "mean", "max", "median at server", "p95 at server",
		"held"}, rows)
	for _, run := range r.Phases {
		if run.Disturbed {
			out.Note("Of the flood, %s frames were sent; while the others pushed, %s were dropped, %s refused and %s throttled. %s senders a second came and went, and %s jobs.",
				comma(run.FloodFrames), comma(run.Dropped), comma(run.Refused), comma(run.Throttled),
				si(float64(run.Joins), run.ChurnSeconds), si(float64(run.Jobs), run.ChurnSeconds))
		}
	}
	out.Note("Mean intervals and their 95th percentiles are off by %.1f %% at most.", 100*r.Deviation())
}

func comma(n uint64) string { return humanize.Comma(int64(n)) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
