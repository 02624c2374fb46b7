// SPDX-License-Identifier: Apache-2.0

package push

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/trace"
)

// computedWorkers are the numbers of workers for which rates are computed.
var computedWorkers = []int{8, 16, 32}

// The paper's range of Libra's rate divided by that of PS-lite, with 32 workers.
const paperLeast, paperMost = 1.5, 4

// Figure is a replay of traces, as in Figure 12 of the Libra paper: the rate at which the gradients
// of a training are added up, divided by Libra's.
type Figure struct {
	Traces []Replayed `json:"traces"`
	// Points has one entry for each trace, peer and number of workers.
	Points []FigurePoint `json:"points"`
	// Dense has the rates at which all gradients are added up, zeros too, with several numbers of
	// slots.
	Dense []DenseRate `json:"dense"`
	// Line is the rate of a machine's link in each direction, for what is computed.
	Line        float64  `json:"line_gbit_per_s"`
	Assumptions []string `json:"assumptions"`

	denseCost *Roles
}

// Replayed is a trace.
type Replayed struct {
	Name string `json:"name"`
	Dim  int    `json:"dim"` // floats of a row
	// Parameters is the number of floats of the whole model; AtLeast is true if only those of the rows
	// that were pushed are known.
	Parameters uint64 `json:"parameters"`
	AtLeast    bool   `json:"at_least"`
	Ranks      int    `json:"ranks"`
	Rows       int    `json:"rows"`     // different ones
	HotRows    int    `json:"hot_rows"` // that the switch sums, in Slots slots
	Slots      int    `json:"slots"`
	// HotShare is the share of the first rank's updates that are of hot rows.
	HotShare float64 `json:"hot_share"`
	// PerIteration is how many rows a rank pushes in an iteration, on average.
	PerIteration float64 `json:"rows_per_iteration"`
	// Costs is what a row costs each role, by peer.
	Costs map[string]Roles `json:"costs"`
}

// FigurePoint is a rate.
type FigurePoint struct {
	Trace   string `json:"trace"`
	Peer    string `json:"peer"`
	Workers int    `json:"workers"`
	// Computed is true of a rate that follows from what each role costs, if each is a machine of its
	// own.
	Computed bool `json:"computed"`
	// RowsPerSecond is how many rows of gradients that are not zero all workers push in a second.
	RowsPerSecond float64 `json:"rows_per_s"`
	Min           float64 `json:"min_rows_per_s"`
	Max           float64 `json:"max_rows_per_s"`
	// Normalised is the rate divided by that of Libra.
	Normalised float64 `json:"normalised"`
	// Bottleneck is what a computed rate is limited by.
	Bottleneck string `json:"bottleneck,omitempty"`
}

// DenseRate is the rate of SwitchML.
type DenseRate struct {
	Workers int `json:"workers"`
	Slots   int `json:"slots"`
	// ValuesPerSecond is how many values all workers push in a second.
	ValuesPerSecond float64 `json:"values_per_s"`
	Min             float64 `json:"min_values_per_s"`
	Max             float64 `json:"max_values_per_s"`
}

func newFigure(cfg *Config) *Figure {
	f := &Figure{Line: cfg.Line, Points: []FigurePoint{}, Dense: []DenseRate{}, Assumptions: figureAssumptions(cfg)}
	for _, t := range cfg.Traces {
		rows := len(t.Ranked())
		f.Traces = append(f.Traces, Replayed{
			Name: t.Name, Dim: t.Dim, Parameters: t.Parameters, AtLeast: t.Least, Ranks: len(t.Workers), Rows: rows,
			HotRows: hotRows(t, rows), Slots: hotRows(t, rows) * t.Dim, PerIteration: perIteration(t), Costs: map[string]Roles{},
		})
	}
	return f
}

// perIteration returns how many rows a rank pushes in an iteration, on average.
func perIteration(t *trace.Trace) float64 {
	rows, steps := 0, 0
	for _, w := range t.Workers {
		rows += len(w.Keys)
		steps += w.Steps
	}
	return experiment.Quotient(float64(rows), float64(steps))
}

// addResults adds what was measured of a trace.
func (f *Figure) addResults(t *Replayed, results []Result) {
	for _, res := range results {
		t.HotShare = res.HotShare
		if res.Roles != nil {
			t.Costs[res.Baseline] = *res.Roles
			continue
		}
		f.Points = append(f.Points, FigurePoint{Trace: t.Name, Peer: res.Baseline, Workers: res.Workers,
			RowsPerSecond: res.PairsPerSecond, Min: res.Min, Max: res.Max})
	}
}

// addDense adds what was measured of SwitchML with a number of slots.
func (f *Figure) addDense(slots int, results []Result) {
	for _, res := range results {
		if res.Roles != nil {
			f.denseCost = res.Roles
			f.denseCost.Server = RoleCost{} // there is none
			f.denseCost.ServerBytes = 0
			continue
		}
		f.Dense = append(f.Dense, DenseRate{Workers: res.Workers, Slots: slots, ValuesPerSecond: res.PairsPerSecond,
			Min: res.Min, Max: res.Max})
	}
}

// finish computes what follows from the measurements.
func (f *Figure) finish(cfg *Config) {
	line := cfg.Line * 1e9 / 8
	for _, t := range f.Traces {
		// In an iteration each worker pushes PerIteration rows, and to SwitchML all Parameters.
		sparse := t.PerIteration / float64(t.Parameters)
		for _, d := range f.Dense {
			if d.Slots != denseSlots {
				continue
			}
			f.Points = append(f.Points, FigurePoint{Trace: t.Name, Peer: SwitchML, Workers: d.Workers,
				RowsPerSecond: d.ValuesPerSecond * sparse, Min: d.Min * sparse, Max: d.Max * sparse})
		}
		for _, workers := range computedWorkers {
			for _, peer := range ReplayBaselines() {
				c, known := t.Costs[peer]
				share := 1.0
				if peer == SwitchML && f.denseCost != nil {
					c, known, share = *f.denseCost, true, sparse
				}
				if !known {
					continue
				}
				p := FigurePoint{Trace: t.Name, Peer: peer, Workers: workers, Computed: true}
				p.RowsPerSecond, p.Bottleneck = c.limit(workers, 1, 1, line)
				p.RowsPerSecond *= share
				p.Min, p.Max = p.RowsPerSecond, p.RowsPerSecond
				f.Points = append(f.Points, p)
			}
		}
	}
	for i := range f.Points {
		p := &f.Points[i]
		if ours := f.find(p.Trace, Unprepared, p.Workers, p.Computed); ours != nil {
			p.Normalised = experiment.Quotient(p.RowsPerSecond, ours.RowsPerSecond)
		}
	}
	order := func(p FigurePoint) int {
		return slices.IndexFunc(f.Traces, func(t Replayed) bool { return t.Name == p.Trace })
	}
	slices.SortStableFunc(f.Points, func(a, b FigurePoint) int {
		return cmp.Or(order(a)-order(b), a.Workers-b.Workers, truth(a.Computed)-truth(b.Computed),
			slices.Index(ReplayBaselines(), a.Peer)-slices.Index(ReplayBaselines(), b.Peer))
	})
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (f *Figure) find(name, peer string, workers int, computed bool) *FigurePoint {
	return experiment.Find(f.Points, func(p FigurePoint) bool {
		return p.Trace == name && p.Peer == peer && p.Workers == workers && p.Computed == computed
	})
}

func figureAssumptions(cfg *Config) []string {
	return []string{
		fmt.Sprintf("Measured: all workers, the server and the switch share the %s of this machine. Each worker repeats the pushes of its rank; if there are more workers than ranks, some have the same.",
			english.Plural(runtime.NumCPU(), "CPU", "")),
		fmt.Sprintf("Computed: each worker, the one server and the switch is a machine with one CPU for it, and the first role or link, of %g Gbit/s, that is busy all the time limits the rate. What a row costs each role was measured with %s on this machine; see the assumptions of --scale.",
			cfg.Line, english.Plural(costWorkers, "worker", "")),
		"libra-unprepared: the whole system, with workers that look up the keys of each push. libra: they have prepared all pushes. zeromq-hash is PS-lite's way, with the sums in its default handle, and zeromq-table the same with Libra's table.",
		fmt.Sprintf("switchml: vectors of %s values, in mode sync with fixed arithmetic, whose scale the workers agree on for each vector. An iteration takes as long as all parameters of the model at the measured rate, which is the same for all traces. Where a trace does not tell how many parameters there are, those that were pushed are taken, in its favour.",
			humanize.Comma(denseSlots)),
		fmt.Sprintf("Slots: %s at most, those that a job with rounds has. In the XDP program, whose slots have 64 bits, they and their second bank take 1 MB; 32 bits each would take half of it. In the paper they have 1 MB.",
			humanize.Comma(denseSlots)),
		fmt.Sprintf("In the paper Libra's rate is %g to %g times that of PS-lite with 32 workers.", paperLeast, float64(paperMost)),
	}
}

func (f *Figure) print(out *report.Printer) {
	count := func(n int) string { return humanize.Comma(int64(n)) }
	out.Table("Traces", []string{"trace", "ranks", "floats of a row", "parameters", "rows", "hot rows", "slots", "hot %",
		"rows of an iteration"}, experiment.Pick(f.Traces, func(t Replayed) []any {
		parameters := count(int(t.Parameters))
		if t.AtLeast {
			parameters = "≥ " + parameters
		}
		return []any{t.Name, t.Ranks, t.Dim, parameters, count(t.Rows), count(t.HotRows), count(t.Slots),
			fmt.Sprintf("%.0f", 100*t.HotShare), fmt.Sprintf("%.0f", t.PerIteration)}
	}))
	out.Table("Rows of gradients a second, and divided by libra-unprepared's; the paper's PS-lite is at 0.25 to 0.67 with 32 workers",
		[]string{"trace", "workers", "", "peer", "1000 rows/s", "min", "max", "normalised", "libra/peer", "limit"},
		experiment.Pick(f.Points, func(p FigurePoint) []any {
			how := "measured"
			if p.Computed {
				how = "computed"
			}
			return []any{p.Trace, p.Workers, how, p.Peer, rows(p.RowsPerSecond), rows(p.Min), rows(p.Max),
				fmt.Sprintf("%.3g", p.Normalised), report.Cell("%.3g", experiment.Quotient(1, p.Normalised)), p.Bottleneck}
		}))
	f.printDense(out)
	for _, a := range f.Assumptions {
		out.Note("%s", a)
	}
}

// printDense prints the rates of SwitchML.
func (f *Figure) printDense(out *report.Printer) {
	if len(f.Dense) == 0 {
		return
	}
	share := func(d DenseRate) float64 { // of the rate with the most slots
		most := experiment.Find(f.Dense, func(m DenseRate) bool { return m.Workers == d.Workers && m.Slots == denseSlots })
		if most == nil {
			return 0
		}
		return experiment.Quotient(d.ValuesPerSecond, most.ValuesPerSecond)
	}
	out.Table("All gradients, zeros too (switchml): million values a second of all workers, measured",
		[]string{"workers", "slots", "million values/s", "min", "max", "of the most slots"},
		experiment.Pick(f.Dense, func(d DenseRate) []any {
			return []any{d.Workers, humanize.Comma(int64(d.Slots)), millions(d.ValuesPerSecond), millions(d.Min),
				millions(d.Max), report.Cell("%.2f", share(d))}
		}))
}

func millions(perSecond float64) string { return fmt.Sprintf("%.4g", perSecond/1e6) }

func rows(perSecond float64) string { return fmt.Sprintf("%.4g", perSecond/1e3) }

// charts returns the figure for each number of workers: measured (push-replay-N), and computed
// (push-replay-N-computed).
func (f *Figure) charts() (charts []chart.Chart) {
	for _, computed := range []bool{false, true} {
		points := slices.DeleteFunc(slices.Clone(f.Points), func(p FigurePoint) bool { return p.Computed != computed })
		peers := experiment.Distinct(points, func(p FigurePoint) string { return p.Peer })
		for _, workers := range experiment.Distinct(points, func(p FigurePoint) int { return p.Workers }) {
			name, how := fmt.Sprintf("push-replay-%d", workers), "measured on one machine"
			if computed {
				name, how = name+"-computed", "computed for machines of their own"
			}
			c := chart.Chart{
				Name: name, Title: fmt.Sprintf("%d workers, %s", workers, how), X: chart.Axis{Label: "trace"},
				Y: chart.Axis{Label: "rate divided by libra's", Room: 1.35},
			}
			chart.AddBars(&c, slices.DeleteFunc(slices.Clone(points), func(p FigurePoint) bool { return p.Workers != workers }),
				func(p FigurePoint) string { return p.Trace }, func(p FigurePoint) string { return p.Peer },
				func(p FigurePoint) []chart.Part {
					return []chart.Part{{Name: p.Peer, Colour: slices.Index(peers, p.Peer), Height: p.Normalised}}
				})
			charts = append(charts, c)
		}
	}
	return charts
}
