package arithmetic

import (
	"fmt"
	"math"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/lut"
)

// Report is the outcome of a study. It marshals to one JSON object.
type Report struct {
	DataSets  []DataSet   `json:"data_sets"`
	Precision []Precision `json:"precision"`
	// Foreign is what Fixed makes of uniform numbers with the scale of a median
	// iteration of the training.
	Foreign  Precision  `json:"precision_of_foreign_scale"`
	LongSums []LongSum  `json:"long_sums"`
	Trials   int        `json:"trials"` // long sums of each length
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
		harness.Pick(r.DataSets, func(d DataSet) []any {
			return []any{
				d.Name, d.Pairs, fmt.Sprintf("%.1e", d.Least), fmt.Sprintf("%.1e", d.Median), fmt.Sprintf("%.1e", d.Largest), percent(d.Opposite, 1),
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
	var rows [][]any
	for _, d := range r.DataSets {
		for _, n := range harness.Distinct(r.LongSums, func(s LongSum) int { return s.Additions }) {
			row := []any{d.Name, humanize.Comma(int64(n))}
			for _, s := range r.LongSums {
				if s.DataSet == d.Name && s.Additions == n {
					row = append(row, fmt.Sprintf("%.1e (%.1e)", s.Median, s.Largest))
				}
			}
			rows = append(rows, row)
		}
	}
	out.Table("(B) Relative error of long sums, median (largest)", header, rows)
	out.Note("%d sums of each length, of numbers drawn at random from the data set, one after the other into one slot. "+
		"The truth is a 320-bit sum. The scale of fixed is the largest at which a sum of that length cannot overflow; the unit of exact is 2^-46 or, "+
		"where a sum of the greatest length might leave its range of 2^17, a coarser one. The errors of exact are those of rounding the sum to float32. "+
		"Where signs are mixed, a sum of n numbers grows as the square root of n only, or cancels, and an error looks larger beside it.", r.Trials)
}

func (r *Report) printMemory(out *report.Printer) {
	kb := func(bytes int) string { return fmt.Sprintf("%.1f", float64(bytes)/kilobyte) }
	out.Table(fmt.Sprintf("(C) Memory for %s hot parameters, KB (§5.7)", humanize.Comma(hotParameters)),
		[]string{"arithmetic", "slots", "tables", "control", "total", "second bank"},
		harness.Pick(r.Memory, func(m Memory) []any {
			return []any{m.Name, kb(m.Slots), kb(m.Tables), kb(m.Control), kb(m.Slots + m.Tables + m.Control), kb(m.Spare)}
		}))
	out.Note("Control is duplicate filter, admission and counters of one job with %d senders; the paper's includes the hash table from "+
		"parameter to register, which our frames do without, as they carry ranks. The second bank is harvested while the first one fills; the paper "+
		"has none. What the Go model needs is counted; a bank of the XDP data plane has %s slots of 8 bytes whatever the job.",
		r.Senders, humanize.Comma(aggregator.MaxSlots))
	tables := harness.Pick(r.Tables.Tables, func(t lut.TableBytes) []any { return []any{t.Name, t.Entries, t.Bytes} })
	tables = append(tables, []any{"all", "", r.Tables.Total}, []any{fmt.Sprintf("all but sub (paper: %d)", lut.PaperBytes), "", r.Tables.Paper})
	out.Table("Tables of lut, bytes", []string{"table", "entries", "bytes"}, tables)
	out.Note("Errors of one addition are below %.2g (same signs), %.2g (opposite signs, exponents two or more apart) and %.2g (others).",
		r.Bound.SameSigns, r.Bound.OppositeSigns, r.Bound.Cancelling)
}

// least is where logarithmic charts end below: a sum that is exactly right has no
// place there.
const least = 1e-9

func errorAxis(label string) harness.Axis {
	var powers []float64
	for e := -9; e <= 0; e++ {
		powers = append(powers, math.Pow10(e))
	}
	return harness.Axis{Label: label, Log: true, Ticks: harness.Ticks("%.0e", powers...), Min: least, Max: 1}
}

// Charts returns precision (Table 2), longsums and memory (§5.7).
func (r *Report) Charts() []harness.Chart {
	return []harness.Chart{r.precisionChart(), r.longSumChart(), r.memoryChart()}
}

// precisionChart shows what precision lacks, the paper's beside ours.
func (r *Report) precisionChart() harness.Chart {
	c := harness.Chart{
		Name: "precision", Title: "One addition: 1 - precision (Table 2)", Y: errorAxis("average and median; 1e-9 stands for less"),
		Series: []harness.Series{
			{Name: "ours, average", Kind: harness.Dots, Colour: 2},
			{Name: "ours, median", Kind: harness.Dots, Colour: 2, Variant: 1},
			{Name: "paper, average", Kind: harness.Dots, Colour: harness.Paper},
			{Name: "paper, median", Kind: harness.Dots, Colour: harness.Paper, Variant: 1},
		},
	}
	for i, p := range r.Precision {
		add := func(series int, precision float64) {
			s := &c.Series[series]
			s.Points = append(s.Points, harness.Point{X: float64(i), Y: max(1-precision, least)})
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
func (r *Report) longSumChart() harness.Chart {
	c := harness.Chart{
		Name: "longsums", Title: "Long sums",
		X: harness.Axis{Label: "additions", Log: true, Room: 2}, Y: errorAxis("relative error, median"),
	}
	for i, a := range arithmetics {
		for j, d := range r.DataSets {
			c.Series = append(c.Series, harness.Series{
				Name: string(a) + ", " + d.Name, Colour: i, Variant: j,
				Points: harness.Points(r.LongSums,
					func(s LongSum) bool { return s.Arithmetic == a && s.DataSet == d.Name },
					func(s LongSum) (x, y float64) { return float64(s.Additions), max(s.Median, least) }),
			})
		}
	}
	return c
}

func (r *Report) memoryChart() harness.Chart {
	c := harness.Chart{
		Name: "memory", Title: "Memory for 30,000 hot parameters (§5.7)",
		Y: harness.Axis{Label: "KB", Max: 1000}, // room for the legend
	}
	harness.AddBars(&c, r.Memory, func(m Memory) string { return m.Name }, func(Memory) string { return "" },
		func(m Memory) []harness.Part {
			return []harness.Part{
				{Name: "slots", Colour: 0, Height: float64(m.Slots) / kilobyte},
				{Name: "tables", Colour: 1, Height: float64(m.Tables) / kilobyte},
				{Name: "control", Colour: 2, Height: float64(m.Control) / kilobyte},
				{Name: "second bank", Colour: 3, Height: float64(m.Spare) / kilobyte},
			}
		})
	return c
}
