package aggregator

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// WriteTable writes what was measured for people, the paper's figures beside
// ours.
func (r *Report) WriteTable(w io.Writer) error {
	out := report.NewPrinter(w)
	if len(r.Results) > 0 {
		header, rows := r.costRows()
		out.Table(fmt.Sprintf("Cost of the XDP program, median of %d rounds (smallest-largest)", r.Rounds), header, rows)
		out.Note("The program alone, in the kernel's test run: checksums, duplicate filter, additions and answer, without a driver. " +
			"Every frame has all lanes full.")
	}
	if len(r.Targets) > 0 {
		out.Table("Targets", []string{"target", "at most", "got", ""}, r.targetRows())
	}
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
	for _, u := range r.Unavailable {
		out.Note("Not measured: %s: %s", u.What, u.Reason)
	}
	return out.Err()
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

// costRows has a row for each mode, number of hot parameters and stripes.
func (r *Report) costRows() (header []string, rows [][]any) {
	names := distinct(r.Results, func(res Result) string { return res.Arithmetic })
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

func (r *Report) targetRows() (rows [][]any) {
	for _, t := range r.Targets {
		verdict := "missed"
		if t.Met {
			verdict = "met"
		}
		rows = append(rows, []any{t.What, fmt.Sprintf("%.2f", t.Want), fmt.Sprintf("%.2f", t.Got), verdict})
	}
	return rows
}

// rateRows has a row for each distribution and number of hot parameters.
func (r *Report) rateRows() (header []string, rows [][]any) {
	names := distinct(r.Rates, func(q Rate) string { return q.Arithmetic })
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

func millions(s Spread) string {
	return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median/1e6, s.Min/1e6, s.Max/1e6)
}

func micros(s Spread) string { return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median, s.Min, s.Max) }
