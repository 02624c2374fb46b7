package push

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "medians of %d rounds of %v; the sums were right in all of them\n\n", r.Rounds, r.Duration); err != nil {
		return err
	}
	var rows [][]any
	for _, res := range r.Results {
		rows = append(rows, []any{
			res.Workers, humanize.Comma(int64(res.Batch)), fmt.Sprintf("%.0f", 100*res.HotShare), res.Peer,
			mega(res.PairsPerSecond), mega(res.Min), mega(res.Max), fmt.Sprintf("%.2f", res.Ratio),
			nanos(res.NsWorker), nanos(res.NsKernel), nanos(res.NsAggregator), nanos(res.NsServer), nanos(res.NsTotal),
		})
	}
	err := report.Table(w, []string{
		"workers", "batch", "hot %", "peer", "Mpairs/s", "min", "max", "libra/peer",
		"worker ns", "kernel ns", "aggregator ns", "ps ns", "all ns",
	}, rows)
	if err != nil {
		return err
	}
	if err := r.writeTargets(w); err != nil {
		return err
	}
	for _, u := range r.Unavailable {
		if _, err := fmt.Fprintf(w, "\nnot measured: %s: %s\nto have it: %s\n", u.Peer, u.Reason, u.Install); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) writeTargets(w io.Writer) error {
	if len(r.Targets) == 0 {
		return nil
	}
	var rows [][]any
	for _, t := range r.Targets {
		verdict := "missed"
		if t.Met {
			verdict = "met"
		}
		rows = append(rows, []any{t.What, fmt.Sprintf("%.2f", t.Want), fmt.Sprintf("%.2f", t.Got), verdict})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return report.Table(w, []string{"target", "at least", "got", ""}, rows)
}

func mega(pairs float64) string  { return fmt.Sprintf("%.2f", pairs/1e6) }
func nanos(value float64) string { return fmt.Sprintf("%.1f", value) }
