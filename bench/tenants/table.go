package tenants

import (
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var rows [][]any
	for _, run := range r.Phases {
		flood := "none"
		if run.Disturbed {
			flood = humanize.SIWithDigits(float64(run.FloodFrames)/run.FloodSeconds, 0, "") + "frames/s"
		}
		for _, j := range run.Tenants {
			rows = append(rows, []any{
				flood, fmt.Sprintf("%d: %s, %s", j.Job, j.Mode, j.Arithmetic), humanize.SIWithDigits(float64(j.Pairs)/run.Seconds, 2, ""), j.Harvests,
				milliseconds(j.Mean), milliseconds(j.Max), milliseconds(j.P50), milliseconds(j.P95), milliseconds(j.Held),
			})
		}
	}
	fmt.Fprintf(w, "Harvest every %v, in ms; all sums exact; %d CPUs for everything; threaded NAPI: %v\n", r.Harvest, r.CPUs, r.ThreadedNAPI)
	if err := report.Table(w, []string{"flood", "job", "pairs/s", "harvests", "mean", "max", "median at server", "p95 at server", "held"}, rows); err != nil {
		return err
	}
	for _, run := range r.Phases {
		if !run.Disturbed {
			continue
		}
		fmt.Fprintf(w, "Of the flood, %s frames were sent; while the others pushed, %s were dropped, %s refused and %s throttled. %s senders a second came and went, and %s jobs.\n",
			humanize.Comma(int64(run.FloodFrames)), humanize.Comma(int64(run.Dropped)), humanize.Comma(int64(run.Refused)), humanize.Comma(int64(run.Throttled)),
			humanize.SIWithDigits(float64(run.Joins)/run.ChurnSeconds, 0, ""), humanize.SIWithDigits(float64(run.Jobs)/run.ChurnSeconds, 0, ""))
	}
	_, err := fmt.Fprintf(w, "Mean intervals and their 95th percentiles are off by %.1f %% at most.\n", 100*r.Deviation())
	return err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
