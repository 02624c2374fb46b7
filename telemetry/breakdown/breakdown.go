// SPDX-License-Identifier: Apache-2.0

// Package breakdown adds up joined rows of frames: the quantiles of each part of their times, by
// operation, worker and server, and the distributions as pictures.
//
// A [Breakdown] is used by one goroutine. Times are quantiles of [telemetry.Histogram], off by 9 %
// at most.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package breakdown

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/telemetry"
)

// Breakdown has the times of rows.
type Breakdown struct {
	times map[key]*telemetry.Histogram
	order []key // of times, once sorted
}

// key identifies a series: the server is [telemetry.NoServer] for frames to the aggregator.
type key struct {
	op             telemetry.Op
	part           telemetry.Part
	worker, server uint16
}

// inOrder are the parts of a frame in the order of its way.
var inOrder = []telemetry.Part{telemetry.Total, telemetry.Network, telemetry.ServerQueue, telemetry.ServerProcess,
	telemetry.WorkerQueue, telemetry.WorkerProcess, telemetry.Repeat}

// New returns a breakdown without rows.
func New() *Breakdown { return &Breakdown{times: map[key]*telemetry.Histogram{}} }

// Add adds what is known of a row.
func (b *Breakdown) Add(r *telemetry.Row) {
	b.add(r, telemetry.Total, r.Total)
	if r.State == telemetry.Resent {
		b.add(r, telemetry.Repeat, r.Repeat)
		return
	}
	b.add(r, telemetry.WorkerQueue, r.Queue)
	b.add(r, telemetry.WorkerProcess, r.Process)
	if r.State != telemetry.Whole {
		return
	}
	if r.Server != telemetry.NoServer {
		b.add(r, telemetry.ServerQueue, r.ServerQueue)
		b.add(r, telemetry.ServerProcess, r.ServerProcess)
	}
	b.add(r, telemetry.Network, r.Network)
}

func (b *Breakdown) add(r *telemetry.Row, part telemetry.Part, d time.Duration) {
	k := key{r.Op, part, r.Worker, r.Server}
	h := b.times[k]
	if h == nil {
		h = &telemetry.Histogram{}
		b.times[k] = h
		b.order = append(b.order, k)
	}
	h.Record(d)
}

// Times describes a series to people and programs.
type Times struct {
	Op     string `json:"op"`   // hot, cold, pull or find
	Part   string `json:"part"` // of the frame's time
	Worker uint16 `json:"worker"`
	Server *int   `json:"server,omitempty"` // none of frames to the aggregator
	Count  uint64 `json:"count"`
	// Mean and quantiles, in nanoseconds.
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
}

// All returns all series, by operation, worker and server; the parts of a frame follow its total.
func (b *Breakdown) All() []Times {
	slices.SortFunc(b.order, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.op, y.op), cmp.Compare(x.worker, y.worker), cmp.Compare(x.server, y.server),
			cmp.Compare(slices.Index(inOrder, x.part), slices.Index(inOrder, y.part)))
	})
	all := make([]Times, 0, len(b.order))
	for _, k := range b.order {
		d := b.times[k].Distribution()
		t := Times{Op: k.op.String(), Part: k.part.String(), Worker: k.worker, Count: d.Count(), Mean: d.Mean(),
			P50: d.Quantile(0.5), P90: d.Quantile(0.9), P99: d.Quantile(0.99), P999: d.Quantile(0.999)}
		if k.server != telemetry.NoServer {
			server := int(k.server)
			t.Server = &server
		}
		all = append(all, t)
	}
	return all
}

// Distribution returns the times of one part of an operation's frames, of all workers and servers.
func (b *Breakdown) Distribution(op telemetry.Op, part telemetry.Part) (d telemetry.Distribution) {
	for k, h := range b.times {
		if k.op == op && k.part == part {
			d = d.Plus(h.Distribution())
		}
	}
	return d
}

// PrintTimes writes series as a table.
func PrintTimes(out *report.Printer, title string, all []Times) {
	rows := make([][]any, len(all))
	for i, t := range all {
		server := ""
		if t.Server != nil {
			server = strconv.Itoa(*t.Server)
		}
		rows[i] = []any{t.Op, t.Part, t.Worker, server, t.Count,
			Short(t.Mean), Short(t.P50), Short(t.P90), Short(t.P99), Short(t.P999)}
	}
	out.Table(title, []string{"of", "part", "worker", "server", "count", "mean", "p50", "p90", "p99", "p99.9"}, rows)
}

// Short rounds a time to three digits: it is measured no better.
func Short(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs() >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// CDFs returns a picture of each operation: the share of frames of which a part took so long or
// less (latency-hot, latency-cold and so on).
func (b *Breakdown) CDFs() (all []chart.Chart) {
	for _, op := range []telemetry.Op{telemetry.Hot, telemetry.Cold, telemetry.Pull, telemetry.Find} {
		c := chart.Chart{
			Name: "latency-" + op.String(), Title: fmt.Sprintf("where %s frames spend their time", op),
			Legend: chart.BottomRight, X: chart.Axis{Label: "µs", Log: true}, Y: chart.Axis{Label: "share of frames", Max: 1},
		}
		for i, part := range inOrder {
			if points := CDF(b.Distribution(op, part)); len(points) > 0 {
				c.Series = append(c.Series, chart.Series{Name: part.String(), Colour: i, Points: points})
			}
		}
		if len(c.Series) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// CDF returns the points of a cumulative distribution, in microseconds.
func CDF(d telemetry.Distribution) (points []chart.Point) {
	const steps = 200
	if d.Count() == 0 {
		return nil
	}
	for i := range steps + 1 {
		q := float64(i) / steps
		if t := d.Quantile(q); t > 0 { // the axis is logarithmic
			points = append(points, chart.Point{X: float64(t) / float64(time.Microsecond), Y: q})
		}
	}
	return points
}
