// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// ErrFailed is wrapped by Run's error where a check failed; Report.Failures has
// the findings.
var ErrFailed = errors.New("soak: failed")

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Duration time.Duration `json:"duration_ns"` // time that the run took
	Seed     uint64        `json:"seed"`
	Window   int           `json:"window"`
	Bound    time.Duration `json:"bound_ns"`
	Rounds   int           `json:"rounds"`

	Links  []*LinkReport `json:"links"`
	Events []Event       `json:"events"` // events in the order in which they happened
	// Recoveries sum the events up by link and kind.
	Recoveries []Recovery `json:"recoveries"`
	// Accounts is how often the frames of a UMEM were counted. Leaked is the
	// largest number found missing, or counted twice, and has to be 0.
	Accounts int `json:"accounts"`
	Leaked   int `json:"leaked_frames"`
	// Stalls are queues that had no answer within the bound.
	Stalls []Stall `json:"stalls"`
	// Memory of this process, and of the server that lived longest.
	Memory []Growth `json:"memory"`
	// Allocations is their number for each packet answered in undisturbed time,
	// everything in this process included.
	Allocations float64 `json:"allocations_per_packet"`
	// Failures are the findings of all checks in words; empty if all is well.
	Failures []string `json:"failures"`
}

// LinkReport is what happened to the packets of a link.
type LinkReport struct {
	Link   string `json:"link"`
	Queues int    `json:"queues"`

	Sent     uint64 `json:"sent"`     // packets that the clients sent
	Answered uint64 `json:"answered"` // came back whole
	// Dropped are in the drop counters of the interfaces, for transmission, and
	// of the sockets, for reception, each packet once.
	Dropped int64 `json:"dropped"`
	// Interfaces are the drop counters of both interfaces. Those for reception
	// also have packets that are in the other end's for transmission, and those
	// that went to the kernel's stack while no socket was open.
	Interfaces map[string]uint64 `json:"interfaces"`
	// Destroyed were in rings that an event destroyed, or came while no socket
	// was there: neither answered nor dropped.
	Destroyed int64 `json:"destroyed"`
	// Unexplained are those in undisturbed time and over changes of MTU. It has
	// to be 0.
	Unexplained int64  `json:"unexplained"`
	Corrupt     uint64 `json:"corrupt"` // packets that arrived corrupt or were answered twice; has to be 0

	// Rate is in packets per second of undisturbed time.
	Rate float64 `json:"frames_per_s"`
	// RoundTrip is of undisturbed time.
	RoundTrip Times `json:"round_trip"`
	// LostWakeups are packets of undisturbed time that lay waiting while their
	// receiver slept until Poll's own time was over. It has to be 0.
	LostWakeups uint64 `json:"lost_wakeups"`
	// LateArrivals are packets of undisturbed time whose receiver was asleep for
	// too long, whatever the cause, and Latest is the longest of these times.
	LateArrivals uint64        `json:"late_arrivals"`
	Latest       time.Duration `json:"latest_ns"`
	// Sockets are the counters of the AF_XDP sockets, of both ends, that were
	// above 0: the causes behind the drops at interfaces.
	Sockets map[string]uint64 `json:"sockets"`
}

// Event is something that happened to a link.
type Event struct {
	At   time.Duration `json:"at_ns"` // since the run began
	Link string        `json:"link"`
	Kind string        `json:"kind"`
	// Recovery is the time from when the disturbance began to be put right
	// until every queue had an answer to a packet sent after that.
	Recovery time.Duration `json:"recovery_ns"`
	Sent     uint64        `json:"sent"`    // around the event
	Lost     int64         `json:"lost"`    // how many of these were lost
	Dropped  int64         `json:"dropped"` // how many of the lost are in the kernel's counters
}

// Recovery sums up the events of one kind on one link.
type Recovery struct {
	Link  string `json:"link"`
	Kind  string `json:"kind"`
	Times Times  `json:"times"`
	Sent  uint64 `json:"sent"`
	Lost  int64  `json:"lost"`
}

// Stall is a queue without an answer for longer than the bound.
type Stall struct {
	At     time.Duration `json:"at_ns"`
	Link   string        `json:"link"`
	During string        `json:"during"` // the event, or "undisturbed time"
	Waits  string        `json:"waits"`  // what waits on what
}

// Times are percentiles of times, in nanoseconds.
type Times struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50_ns"`
	P90   int64 `json:"p90_ns"`
	P99   int64 `json:"p99_ns"`
	Max   int64 `json:"max_ns"`
}

// newHistogram makes a histogram of times in nanoseconds: three significant
// digits up to an hour.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Hour), 3) }

// record adds a time; one beyond the range counts as its end.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(1, ns), int64(time.Hour)))
}

func summary(h *hdrhistogram.Histogram) Times {
	return Times{
		Count: h.TotalCount(), P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90),
		P99: h.ValueAtQuantile(99), Max: h.Max(),
	}
}

// sumUp adds the recoveries of a link's events.
func (r *Report) sumUp(link string) {
	kinds := map[string][]Event{}
	for _, e := range r.Events {
		if e.Link == link {
			kinds[e.Kind] = append(kinds[e.Kind], e)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		k := Recovery{Link: link, Kind: kind}
		for _, e := range kinds[kind] {
			k.Sent += e.Sent
			k.Lost += e.Lost
		}
		times := experiment.Pick(kinds[kind], func(e Event) int64 { return int64(e.Recovery) })
		at := func(q float64) int64 { return experiment.Quantile(times, q) }
		k.Times = Times{Count: int64(len(times)), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
		r.Recoveries = append(r.Recoveries, k)
	}
}

func newReport(cfg Config) *Report {
	return &Report{Seed: cfg.Seed, Window: windowSize, Bound: cfg.Bound}
}

func (r *Report) addFailure(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// err returns Run's error: the first finding and the number of the others.
func (r *Report) err() error {
	switch n := len(r.Failures); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%w: %s", ErrFailed, r.Failures[0])
	default:
		return fmt.Errorf("%w: %s; and %d more", ErrFailed, r.Failures[0], n-1)
	}
}

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	out.Note("Soaked for %v: %d rounds, %d events, window of %d packets a queue, seed %d.",
		r.Duration.Round(time.Second), r.Rounds, len(r.Events), r.Window, r.Seed)
	out.Table("Packets", []string{
		"link", "sent", "answered", "dropped", "destroyed", "unexplained", "corrupt", "lost wake-ups", "late (longest)",
		"packets/s", "p50 µs", "p99 µs", "max µs",
	}, experiment.Pick(r.Links, func(l *LinkReport) []any {
		return []any{
			l.Link, comma(l.Sent), comma(l.Answered), comma(l.Dropped), comma(l.Destroyed), l.Unexplained, l.Corrupt,
			l.LostWakeups, fmt.Sprintf("%d (%v)", l.LateArrivals, l.Latest.Round(time.Millisecond)),
			comma(uint64(l.Rate)), micros(l.RoundTrip.P50), micros(l.RoundTrip.P99), micros(l.RoundTrip.Max),
		}
	}))
	out.Table("Recoveries", []string{"link", "event", "times", "p50 ms", "p90", "p99", "max", "packets lost"},
		experiment.Pick(r.Recoveries, func(k Recovery) []any {
			return []any{k.Link, k.Kind, k.Times.Count, millis(k.Times.P50), millis(k.Times.P90), millis(k.Times.P99),
				millis(k.Times.Max), comma(k.Lost)}
		}))
	change := func(a, b uint64) string { return comma(a) + " → " + comma(b) }
	out.Table("Memory", []string{"process", "samples", "heap bytes", "objects", "descriptors", "goroutines"},
		experiment.Pick(r.Memory, func(g Growth) []any {
			return []any{
				g.Process, g.Samples, change(g.First.Heap, g.Last.Heap), change(g.First.Objects, g.Last.Objects),
				change(uint64(g.First.Descriptors), uint64(g.Last.Descriptors)),
				change(uint64(g.First.Goroutines), uint64(g.Last.Goroutines)),
			}
		}))
	for _, l := range r.Links {
		out.Note("Link %s, interfaces' drop counters: %s; sockets' counters: %s.", l.Link, list(l.Interfaces),
			list(l.Sockets))
	}
	out.Note("Frames: %d leaked in %d accounts; stalls beyond %v: %d; %.4f allocations a packet.",
		r.Leaked, r.Accounts, r.Bound, len(r.Stalls), r.Allocations)
	for _, f := range r.Failures {
		out.Note("FAILED: %s", f)
	}
	if len(r.Failures) == 0 {
		out.Note("Every check passed.")
	}
}

func comma[T int64 | uint64](n T) string { return humanize.Comma(int64(n)) }

func micros(ns int64) string { return fmt.Sprintf("%.0f", float64(ns)/1e3) }

func millis(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e6) }

func list(counters map[string]uint64) string {
	all := experiment.Pick(slices.Sorted(maps.Keys(counters)), func(name string) string {
		return name + " " + comma(counters[name])
	})
	return cmp.Or(strings.Join(all, ", "), "none")
}
