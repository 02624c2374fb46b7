package soak

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "soaked for %v: %d rounds, %d events, window of %d packets a queue, seed %d\n\n",
		r.Duration.Round(time.Second), r.Rounds, len(r.Events), r.Window, r.Seed)
	for _, table := range []func(io.Writer) error{r.packetTable, r.recoveryTable, r.memoryTable} {
		if err := table(&out); err != nil {
			return err
		}
		out.WriteString("\n")
	}
	for _, l := range r.Links {
		fmt.Fprintf(&out, "link %s, interfaces' drop counters: %s; sockets' counters: %s\n",
			l.Link, counterList(l.Interfaces), counterList(l.Sockets))
	}
	fmt.Fprintf(&out, "frames: %d leaked in %d accounts; stalls beyond %v: %d; %.4f allocations a packet\n",
		r.Leaked, r.Accounts, r.Bound, len(r.Stalls), r.Allocations)
	if len(r.Failures) == 0 {
		out.WriteString("every check passed\n")
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&out, "FAILED: %s\n", f)
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("soak: write the report: %w", err)
	}
	return nil
}

func (r *Report) packetTable(w io.Writer) error {
	var rows [][]any
	for _, l := range r.Links {
		rows = append(rows, []any{
			l.Link, comma(l.Sent), comma(l.Answered), comma(l.Dropped), comma(l.Destroyed), l.Unexplained, l.Corrupt,
			l.LostWakeups, fmt.Sprintf("%d (%v)", l.LateArrivals, l.Latest.Round(time.Millisecond)),
			comma(uint64(l.Rate)), micros(l.RoundTrip.P50), micros(l.RoundTrip.P99), micros(l.RoundTrip.Max),
		})
	}
	return report.Table(w, []string{
		"link", "sent", "answered", "dropped", "destroyed", "unexplained", "corrupt", "lost wake-ups", "late (longest)",
		"packets/s", "p50 µs", "p99 µs", "max µs",
	}, rows)
}

func (r *Report) recoveryTable(w io.Writer) error {
	var rows [][]any
	for _, k := range r.Recoveries {
		rows = append(rows, []any{
			k.Link, k.Kind, k.Times.Count, millis(k.Times.P50), millis(k.Times.P90), millis(k.Times.P99), millis(k.Times.Max), comma(k.Lost),
		})
	}
	return report.Table(w, []string{"link", "event", "times", "recovery p50 ms", "p90", "p99", "max", "packets lost"}, rows)
}

func (r *Report) memoryTable(w io.Writer) error {
	var rows [][]any
	change := func(a, b uint64) string { return fmt.Sprintf("%s → %s", comma(a), comma(b)) }
	for _, g := range r.Memory {
		rows = append(rows, []any{
			g.Process, g.Samples, change(g.First.Heap, g.Last.Heap), change(g.First.Objects, g.Last.Objects),
			change(uint64(g.First.Descriptors), uint64(g.Last.Descriptors)), change(uint64(g.First.Goroutines), uint64(g.Last.Goroutines)),
		})
	}
	return report.Table(w, []string{"process", "samples", "heap bytes", "objects", "descriptors", "goroutines"}, rows)
}

func comma[T int64 | uint64](n T) string { return humanize.Comma(int64(n)) }

func micros(ns int64) string { return fmt.Sprintf("%.0f", float64(ns)/1e3) }

func millis(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e6) }

// counterList lists counters by name.
func counterList(counters map[string]uint64) string {
	if len(counters) == 0 {
		return "none"
	}
	var list []string
	for name, n := range counters {
		list = append(list, fmt.Sprintf("%s %s", name, comma(n)))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
