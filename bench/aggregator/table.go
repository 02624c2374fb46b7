package aggregator

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/report"
)

// Print writes what was measured for people, the paper's figures beside ours.
func (r *Report) Print(out *report.Printer) {
	if len(r.Results) > 0 {
		header, rows := r.costRows()
		out.Table(fmt.Sprintf("Cost of the XDP program, median of %d rounds (smallest-largest)", r.Rounds), header, rows)
		out.Note("The program alone, in the kernel's test run: checksums, duplicate filter, additions and answer, without a driver. " +
			"Every frame has all lanes full.")
	}
	harness.PrintTargets(out, r.Targets)
	if len(r.Rates) > 0 {
		header, rows := r.rateRows()
		out.Table("Million pairs a second of the XDP program on one CPU, frames of 10 stripes, median (smallest-largest)", header, rows)
	}
	if len(r.Systems) > 0 {
		out.Table("Aggregator and parameter server together, million pairs a second, exact arithmetic (Figures 13 and 14)",
			[]string{"keys", "hot", "hot share", "server on the rest", "together", "of server alone", fmt.Sprintf("of %s hot", humanize.Comma(paperHot))}, r.systemRows())
		out.Note("%s", r.paperOnThroughput())
	}
	if len(r.Negotiations) > 0 {
		out.Table("Delay of an iteration, µs (Figure 17), median (smallest-largest round)",
			[]string{"backend", "workers", "arithmetic", "iterations", "negotiation", "p99", "reduction", "iteration"}, r.delayRows())
		out.Note("%s", r.paperOnDelay())
	}
	harness.PrintUnavailable(out, r.Unavailable)
}

func (r *Report) paperOnThroughput() string {
	var gains, ours []string
	for _, p := range paperGain {
		gains = append(gains, fmt.Sprintf("%.1f %% for %s", 100*(p.Gain-1), p.Task))
	}
	for _, s := range r.Systems {
		if s.Hot == 2*paperHot && s.Relative > 0 {
			ours = append(ours, fmt.Sprintf("%+.1f %% for %s", 100*(s.Relative-1), s.Distribution))
		}
	}
	text := fmt.Sprintf("The server's rate is that of its store on COLD frames of the pairs that are not hot; together, each has a CPU, "+
		"and the slower one sets the rate. There is no network in it. The paper's figures are normalised; its text gives these numbers only: "+
		"60,000 instead of 30,000 hot parameters bring %s (SwitchML with twice its memory reaches %.1f %% of Libra).",
		strings.Join(gains, " and "), 100*paperSwitchML)
	if ours != nil {
		text += " Ours bring " + strings.Join(ours, " and ") + "."
	}
	return text
}

func (r *Report) paperOnDelay() string {
	var paper []string
	for _, p := range paperDelay {
		paper = append(paper, fmt.Sprintf("%.0f ms with %d workers", p.Delay, p.Workers))
	}
	return fmt.Sprintf("All workers, and the aggregator, share this machine's CPUs; the vector has %s parameters. "+
		"Each figure is the median over workers and iterations. The paper's text has an extra delay of over %s for SwitchML's negotiation, "+
		"and does not say how its workers exchange what they negotiate; ours send one frame each and get one answer, on the data path.",
		humanize.Comma(int64(r.Negotiations[0].Parameters)), strings.Join(paper, " and of "))
}

// paperHot is the number of hot parameters of the paper's default configuration
// (libra.txt §5.2), which its figures are normalised by.
const paperHot = 30_000

// paperGain is what twice the hot parameters, 60,000, bring the paper's two
// production tasks: "the improvement is 7% for OA and 1.7% for SE" (libra.txt
// §5.2, on Figure 13). The text has no other number from Figures 13 and 14 for
// Libra, and no throughput that is not normalised.
var paperGain = []struct {
	Task string
	Gain float64
}{{"OA", 1.07}, {"SE", 1.017}}

// paperSwitchML is SwitchML with twice its memory, by Libra's default
// configuration (libra.txt §5.2, on Figure 13).
const paperSwitchML = 0.456

// paperDelay is what the negotiation of a scale adds to an iteration, by number
// of workers, in milliseconds: "over 100ms when only 8 workers are used; the
// extra delay increases to 130ms when 32 workers are used" (libra.txt §5.5, on
// Figure 17).
var paperDelay = []struct {
	Workers int
	Delay   float64
}{{8, 100}, {32, 130}}

// costRows has a row for each mode, number of hot parameters and stripes.
func (r *Report) costRows() (header []string, rows [][]any) {
	names := harness.Distinct(r.Results, func(res Result) string { return res.Arithmetic })
	header = []string{"mode", "hot", "stripes"}
	for _, n := range names {
		header = append(header, n+", ns a frame", "ns a pair")
	}
	type key struct {
		mode         string
		hot, stripes int
	}
	cells := map[key][]any{}
	var order []key
	for _, res := range r.Results {
		k := key{res.Mode, res.Hot, res.Stripes}
		if cells[k] == nil {
			order = append(order, k)
			cells[k] = []any{k.mode, humanize.Comma(int64(k.hot)), k.stripes}
		}
		cells[k] = append(cells[k], fmt.Sprintf("%.0f", res.NsPerFrame), fmt.Sprintf("%.2f (%.2f-%.2f)", res.NsPerPair, res.Min, res.Max))
	}
	for _, k := range order {
		rows = append(rows, cells[k])
	}
	return header, rows
}

// rateRows has a row for each distribution and number of hot parameters.
func (r *Report) rateRows() (header []string, rows [][]any) {
	names := harness.Distinct(r.Rates, func(q Rate) string { return q.Arithmetic })
	header = append([]string{"ranks", "hot"}, names...)
	for i := 0; i < len(r.Rates); i += len(names) {
		row := []any{r.Rates[i].Distribution, humanize.Comma(int64(r.Rates[i].Hot))}
		for _, q := range r.Rates[i : i+len(names)] {
			row = append(row, millions(q.Pairs))
		}
		rows = append(rows, row)
	}
	return header, rows
}

func (r *Report) systemRows() (rows [][]any) {
	for _, s := range r.Systems {
		relative := ""
		if s.Relative > 0 {
			relative = fmt.Sprintf("%.2f", s.Relative)
		}
		rows = append(rows, []any{
			s.Distribution, humanize.Comma(int64(s.Hot)), fmt.Sprintf("%.1f %%", 100*s.HotShare), millions(s.Server),
			fmt.Sprintf("%.0f", s.Bound/1e6), fmt.Sprintf("%.2f", s.Speedup), relative,
		})
	}
	return rows
}

func (r *Report) delayRows() (rows [][]any) {
	for _, d := range r.Negotiations {
		negotiation, slowest := "", ""
		if d.Negotiate.Median > 0 {
			negotiation, slowest = micros(d.Negotiate), fmt.Sprintf("%.0f", d.Slowest)
		}
		rows = append(rows, []any{d.Backend, d.Workers, d.Arithmetic, d.Iterations, negotiation, slowest, micros(d.Reduce), micros(d.Total)})
	}
	return rows
}

func millions(s harness.Spread) string {
	return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median/1e6, s.Min/1e6, s.Max/1e6)
}

func micros(s harness.Spread) string { return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median, s.Min, s.Max) }
