// SPDX-License-Identifier: Apache-2.0

package arithmetic

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/retransmit"
)

// Report is the outcome of a study. It marshals to one JSON object.
type Report struct {
	DataSets  []DataSet   `json:"data_sets"`
	Precision []Precision `json:"precision"`
	// Foreign is what Fixed makes of uniform numbers with the scale of a median
	// iteration of the training.
	Foreign  Precision  `json:"precision_of_foreign_scale"`
	LongSums []LongSum  `json:"long_sums"`
	Trials   int        `json:"rounds"` // long sums of each length
	Memory   []Memory   `json:"memory"`
	Senders  int        `json:"senders"`
	Tables   lut.Budget `json:"tables"`
	Bound    lut.Bound  `json:"bound"`
	// Advice interprets the figures for the choice of an arithmetic.
	Advice string `json:"advice"`
}

// Print writes the report for people, the paper's figures beside ours.
func (r *Report) Print(out *report.Printer) {
	r.printDataSets(out)
	r.printPrecision(out)
	r.printLongSums(out)
	r.printMemory(out)
	out.Note("%s", r.Advice)
}

func percent(share float64, digits int) string { return fmt.Sprintf("%.*f %%", digits, 100*share) }

func (r *Report) printDataSets(out *report.Printer) {
	out.Table("Numbers that are added", []string{"data set", "pairs", "least", "median", "largest", "of opposite signs"},
		experiment.Pick(r.DataSets, func(d DataSet) []any {
			return []any{
				d.Name, d.Pairs, fmt.Sprintf("%.1e", d.Least), fmt.Sprintf("%.1e", d.Median), fmt.Sprintf("%.1e", d.Largest),
				percent(d.Opposite, 1),
			}
		}))
}

func (r *Report) printPrecision(out *report.Printer) {
	var rows [][]any
	for _, p := range r.Precision {
		row := []any{p.Arithmetic, p.DataSet, percent(p.Median, 5), percent(p.Average, 5), percent(p.Worst, 2)}
		if p.Paper != nil {
			row = append(row, percent(p.Paper.Median, 2), percent(p.Paper.Average, 2))
		}
		rows = append(rows, row)
	}
	out.Table("(A) Precision of one addition (Table 2)",
		[]string{"arithmetic", "data set", "median", "average", "worst", "paper: median", "average"}, rows)
	out.Note("Precision is 1 - |got - true| / |true|, at least 0; where the true sum is 0, it is 1 if got is 0 and else 0. " +
		"The paper does not define it for these. Its gradients (R1) are not public; ours are of a factorisation machine: " +
		"pairs that two workers push to one parameter in one iteration. The scale of fixed is negotiated over all gradients of both workers " +
		"in the iteration, and over the interval (-1, 1) for the uniform numbers (R2).")
	paper := paperTable2[Fixed][1]
	out.Note("Why the paper's fixed has a median of %s and an average of %s on R2, and ours has not: with a scale that is negotiated for the numbers, "+
		"rounding leaves errors of 2^-31 of the largest. A median far below the average means that many sums are right and many are far off, "+
		"as integers are that leave their range. A scale that was negotiated for other numbers brings that about: with the scale of a median "+
		"iteration of the training, our fixed saturates on R2, with a median of %s and an average of %s. The paper's scale can hardly have been "+
		"negotiated for R2.",
		percent(paper.Median, 2), percent(paper.Average, 2), percent(r.Foreign.Median, 2), percent(r.Foreign.Average, 2))
}

func (r *Report) printLongSums(out *report.Printer) {
	header := []string{"data set", "additions"}
	for _, a := range arithmetics {
		header = append(header, string(a))
	}
	out.Table("(B) Relative error of long sums, median (largest)", header, experiment.Rows(r.LongSums,
		func(s LongSum) []any { return []any{s.DataSet, humanize.Comma(int64(s.Additions))} },
		func(s LongSum) []any { return []any{fmt.Sprintf("%.1e (%.1e)", s.Median, s.Largest)} }))
	out.Note("%d sums of each length, of numbers drawn at random from the data set, one after the other into one slot. "+
		"The truth is a 320-bit sum. The scale of fixed is the largest at which a sum of that length cannot overflow; the unit of exact is 2^-46 or, "+
		"where a sum of the greatest length might leave its range of 2^17, a coarser one. The errors of exact are those of rounding the sum to float32. "+
		"Where signs are mixed, a sum of n numbers grows as the square root of n only, or cancels, and an error looks larger beside it.", r.Trials)
}

func (r *Report) printMemory(out *report.Printer) {
	kb := func(bytes int) string { return fmt.Sprintf("%.1f", float64(bytes)/kilobyte) }
	out.Table(fmt.Sprintf("(C) Memory for %s hot parameters, KB (§5.7)", humanize.Comma(hotParameters)),
		[]string{"arithmetic", "slots", "tables", "control", "total", "second bank"},
		experiment.Pick(r.Memory, func(m Memory) []any {
			return []any{m.Name, kb(m.Slots), kb(m.Tables), kb(m.Control), kb(m.Slots + m.Tables + m.Control), kb(m.Spare)}
		}))
	out.Note("Control is duplicate filter, admission and counters of one job with %d senders; the paper's includes the hash table from "+
		"parameter to register, which our frames do without, as they carry ranks. The second bank is harvested while the first one fills; the paper "+
		"has none. What the Go model needs is counted; a bank of the XDP data plane has %s slots of 8 bytes whatever the job.",
		r.Senders, humanize.Comma(aggregator.PageSlots))
	tables := experiment.Pick(r.Tables.Tables, func(t lut.TableBytes) []any { return []any{t.Name, t.Entries, t.Bytes} })
	tables = append(tables, []any{"all", "", r.Tables.Total},
		[]any{fmt.Sprintf("all but sub (paper: %d)", lut.PaperBytes), "", r.Tables.Paper})
	out.Table("Tables of lut, bytes", []string{"table", "entries", "bytes"}, tables)
	out.Note("Errors of one addition are below %.2g (same signs), %.2g (opposite signs, exponents two or more apart) and %.2g (others).",
		r.Bound.SameSigns, r.Bound.OppositeSigns, r.Bound.Cancelling)
}

// least is where logarithmic charts end below: a sum that is exactly right has no
// place there.
const least = 1e-9

func errorAxis(label string) chart.Axis {
	var powers []float64
	for e := -9; e <= 0; e++ {
		powers = append(powers, math.Pow10(e))
	}
	return chart.Axis{Label: label, Log: true, Ticks: chart.Ticks("%.0e", powers...), Min: least, Max: 1}
}

// Charts returns precision (Table 2), longsums and memory (§5.7).
func (r *Report) Charts() []chart.Chart {
	return []chart.Chart{r.precisionChart(), r.longSumChart(), r.memoryChart()}
}

// precisionChart shows what precision lacks, the paper's beside ours.
func (r *Report) precisionChart() chart.Chart {
	c := chart.Chart{
		Name: "precision", Title: "One addition: 1 - precision (Table 2)", Y: errorAxis("average and median (1e-9: or less)"),
		Series: []chart.Series{
			{Name: "ours, average", Kind: chart.Dots, Colour: 2},
			{Name: "ours, median", Kind: chart.Dots, Colour: 2, Variant: 1},
			{Name: "paper, average", Kind: chart.Dots, Colour: chart.Paper},
			{Name: "paper, median", Kind: chart.Dots, Colour: chart.Paper, Variant: 1},
		},
	}
	for i, p := range r.Precision {
		add := func(series int, precision float64) {
			s := &c.Series[series]
			s.Points = append(s.Points, chart.Point{X: float64(i), Y: max(1-precision, least)})
		}
		add(0, p.Average)
		add(1, p.Median)
		if p.Paper != nil {
			add(2, p.Paper.Average)
			add(3, p.Paper.Median)
		}
		set, _, _ := strings.Cut(p.DataSet, " ")
		c.X.Names = append(c.X.Names, string(p.Arithmetic)+", "+set)
	}
	return c
}

// longSumChart has a colour for each arithmetic, and dashes and glyphs for each
// data set.
func (r *Report) longSumChart() chart.Chart {
	c := chart.Chart{
		Name: "longsums", Title: "Long sums",
		X: chart.Axis{Label: "additions", Log: true, Room: 2}, Y: errorAxis("relative error, median"),
	}
	for i, a := range arithmetics {
		for j, d := range r.DataSets {
			c.Series = append(c.Series, chart.Series{
				Name: string(a) + ", " + d.Name, Colour: i, Variant: j,
				Points: chart.Points(r.LongSums,
					func(s LongSum) bool { return s.Arithmetic == a && s.DataSet == d.Name },
					func(s LongSum) (x, y float64) { return float64(s.Additions), max(s.Median, least) }),
			})
		}
	}
	return c
}

func (r *Report) memoryChart() chart.Chart {
	c := chart.Chart{
		Name: "memory", Title: "Memory for 30,000 hot parameters (§5.7)",
		Y: chart.Axis{Label: "KB", Max: 1000}, // room for the legend
	}
	chart.AddBars(&c, r.Memory, func(m Memory) string { return m.Name }, func(Memory) string { return "" },
		func(m Memory) []chart.Part {
			return []chart.Part{
				{Name: "slots", Colour: 0, Height: float64(m.Slots) / kilobyte},
				{Name: "tables", Colour: 1, Height: float64(m.Tables) / kilobyte},
				{Name: "control", Colour: 2, Height: float64(m.Control) / kilobyte},
				{Name: "second bank", Colour: 3, Height: float64(m.Spare) / kilobyte},
			}
		})
	return c
}

// tolerable is the error of a sum up to which the advice calls it harmless: a
// tenth of a percent, which is the paper's own error of one addition.
const tolerable = 1e-3

func (r *Report) advice() string {
	last := r.LongSums[len(r.LongSums)-1].Additions
	longest := humanize.Comma(int64(last))
	growing := r.DataSets[len(r.DataSets)-1].Name
	lut, fixed := r.table2(LUT), r.table2(Fixed)

	exactly := fmt.Sprintf("Choose exact wherever the data plane adds 64-bit integers, as XDP and the Go model do: "+
		"after %s additions its largest error is %.1e (float32: %.1e), the sum does not depend on the order of arrival, "+
		"and nothing is negotiated; it takes 8 bytes a slot instead of 4.",
		longest, r.largest(Exact, last), r.largest(Float32, last))

	looked := fmt.Sprintf("Choose lut on a switch without floats whose workers are asynchronous or whose gradients span many magnitudes. "+
		"One addition is precise to %s on average for gradients and %s for uniform numbers, and none is off by more than %.1e, "+
		"cancelling ones included. But what additions lose adds up, and addends below 2^-16 of the sum are lost altogether: "+
		"a sum of %s numbers of one sign has an error of %s. %s",
		percent(lut[0].Average, 4), percent(lut[1].Average, 4), max(r.Bound.SameSigns, r.Bound.OppositeSigns),
		longest, percent(r.median(LUT, growing, last), 1), r.harvest())

	negotiated := fmt.Sprintf("Choose fixed where 32-bit slots must do and workers are synchronous anyway. "+
		"One addition is precise to %s on average for gradients and %s for uniform numbers, but only because the scale is negotiated for these very numbers in every iteration; "+
		"with the scale of other numbers, %s is left. "+
		"All addends share 31 bits: a sum of %s leaves each of them %d, "+
		"and a gradient far below the largest one of its iteration loses its digits (the worst pair of gradients is precise to %s). "+
		"The median error of a sum of %s gradients is %.1e (lut: %.1e).",
		percent(fixed[0].Average, 5), percent(fixed[1].Average, 5), percent(r.Foreign.Average, 1),
		longest, 31-bits.Len(uint(last-1)), percent(fixed[0].Worst, 2),
		longest, r.median(Fixed, r.DataSets[0].Name, last), r.median(LUT, r.DataSets[0].Name, last))

	return exactly + " " + looked + " " + negotiated
}

// harvest reports how long a sum of lut may become.
func (r *Report) harvest() string {
	shortest := math.MaxInt // of the lengths that do harm
	for _, s := range r.LongSums {
		if s.Arithmetic == LUT && s.Median > tolerable {
			shortest = min(shortest, s.Additions)
		}
	}
	harmless := 0
	for _, s := range r.LongSums {
		if s.Additions < shortest {
			harmless = max(harmless, s.Additions)
		}
	}
	limit := percent(tolerable, 1)
	if harmless == 0 {
		return fmt.Sprintf("Median errors exceed %s from %s additions on, so harvest after fewer.", limit,
			humanize.Comma(int64(shortest)))
	}
	return fmt.Sprintf("Median errors stay within %s up to %s additions, so harvest at least as often.", limit,
		humanize.Comma(int64(harmless)))
}

// table2 returns an arithmetic's rows, gradients first.
func (r *Report) table2(a Arithmetic) (rows []Precision) {
	for _, p := range r.Precision {
		if p.Arithmetic == a {
			rows = append(rows, p)
		}
	}
	return rows
}

// largest returns the largest error of sums of that length, of any data set.
func (r *Report) largest(a Arithmetic, additions int) (largest float64) {
	for _, s := range r.LongSums {
		if s.Arithmetic == a && s.Additions == additions {
			largest = max(largest, s.Largest)
		}
	}
	return largest
}

func (r *Report) median(a Arithmetic, dataSet string, additions int) float64 {
	return experiment.Find(r.LongSums, func(s LongSum) bool {
		return s.Arithmetic == a && s.DataSet == dataSet && s.Additions == additions
	}).Median
}

// Memory is the memory of an aggregator with one job of 30,000 hot parameters, in
// bytes (the paper's §5.7).
type Memory struct {
	Name string `json:"name"`
	// Slots is one bank of sums. Tables are those of table lookup. Control is
	// the rest: duplicate filter, admission and counters.
	Slots   int `json:"slots_bytes"`
	Tables  int `json:"tables_bytes"`
	Control int `json:"control_bytes"`
	// Spare is the second bank, which is harvested while the first one fills.
	Spare int `json:"spare_bank_bytes"`
}

// Total returns the sum of all.
func (m Memory) Total() int { return m.Slots + m.Tables + m.Control + m.Spare }

// hotParameters is the number of hot parameters of the paper's §5.7.
const hotParameters = 30_000

const kilobyte = 1024

// paperMemory is the paper's §5.7.
var paperMemory = Memory{Name: "paper", Slots: 118 * kilobyte, Tables: lut.PaperBytes, Control: 130 * kilobyte}

// memory accounts for one job, by arithmetic.
func memory(c Config, tables lut.Budget) []Memory {
	perSender := int(unsafe.Sizeof(retransmit.Filter{}) +
		unsafe.Sizeof(aggregator.SenderConfig{}) + unsafe.Sizeof(aggregator.SenderCounters{}))
	control := c.Senders*perSender +
		int(unsafe.Sizeof(aggregator.JobConfig{})+unsafe.Sizeof(aggregator.JobCounters{})+
			unsafe.Sizeof(aggregator.Counters{}))
	rows := []Memory{paperMemory}
	add := func(a Arithmetic, slot, tables int) {
		bank := hotParameters * slot
		rows = append(rows, Memory{Name: string(a), Slots: bank, Tables: tables, Control: control, Spare: bank})
	}
	add(LUT, 4, tables.Total)
	add(Fixed, 4, 0)
	add(Exact, 8, 0)
	return rows
}
