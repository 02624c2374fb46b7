package hotset

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/libra-ina/libra/wire"
)

// WriteTables prints the report for people, the paper's figures beside ours.
func (r Report) WriteTables(w io.Writer) error {
	out := &printer{w: w}
	out.table(r.logTable())
	out.table(r.precisionTable())
	out.note(`Each cell: median of %d samples (smallest, largest). Hg is found in the whole log, Hs in the sample, both by the rule of
§5.3: parameters are added, step by step, until a step gains less than %.3g %% of all updates. The paper's step is 1,000, for
logs of production size. "least" is how often the last parameter of Hg is updated in the whole log: a sample of 4 %% shows it
0.04 x least times. Where that is below 1, much of Hg is not in the sample at all and no method could find it; a log that is
smaller than the paper's asks for a smaller step.`, r.Samples, 100*r.MinGain)
	out.table(r.packetTable())
	out.note(`Mini-batches of %d rows, %d registers, packets of %d pairs (192 bytes; the paper does not tell its number of registers).
A packet that carries n pairs of one register is recirculated n-1 times. "Combined" batches hold each key once, in ascending
order, as a worker pushes them; "every update" sends a pair for each occurrence, so that repeated keys meet in one packet
whatever the placement. Lane-aligned packets are stripes, whose lane j is wired to register j. Dense stripes are for
aggregators in memory (XDP), which never recirculate; the figure says what they would cost a switch.`,
		r.BatchRows, registers, capacity)
	out.table(r.laneTable())
	out.note(`Hot frames of up to %d stripes. The size counts all pairs of a batch, hot and cold. "-": the log has no such batch.`, wire.MaxStripes)
	return out.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) print(s string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, s)
	}
}

func (p *printer) table(t table.Writer) { p.print(t.Render()) }

func (p *printer) note(format string, args ...any) { p.print(fmt.Sprintf(format, args...) + "\n") }

func newTable(title string, header table.Row, numbersFrom int) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.SetTitle(title)
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for n := numbersFrom; n <= len(header); n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func (r Report) logTable() table.Writer {
	t := newTable("Training logs", table.Row{"log", "rows", "updates", "parameters", "updates of the top 30,000"}, 2)
	for _, l := range r.Logs {
		t.AppendRow(table.Row{l.Name, l.Rows, l.Updates, l.Parameters, percent(l.Top30K)})
	}
	t.AppendSeparator()
	t.AppendRow(table.Row{"paper, Task 1 (§3.1)", "", "", "150 million", "over 50 %"})
	t.AppendRow(table.Row{"paper, Task 2 (§3.1)", "", "", "9 million", "about 70 %"})
	return t
}

func (r Report) precisionTable() table.Writer {
	header := table.Row{"log", "step", "|Hg|", "share", "least"}
	var rates []float64
	for _, p := range r.Precision {
		if len(p.Rates) > len(rates) {
			rates = rates[:0]
			for _, q := range p.Rates {
				rates = append(rates, q.Rate)
			}
		}
	}
	for _, rate := range rates {
		header = append(header, fmt.Sprintf("%% at %.3g %%", 100*rate))
	}
	t := newTable("(A) Precision of hot parameters found in a sample, |Hg ∩ Hs| / |Hg|", header, 2)
	last := ""
	for _, p := range r.Precision {
		if last != p.Log {
			t.AppendSeparator()
			last = p.Log
		}
		row := table.Row{p.Log, p.Step, p.Hot, percent(p.Share), p.Least}
		for _, q := range p.Rates {
			row = append(row, fmt.Sprintf("%.1f (%.1f, %.1f)", 100*q.Median, 100*q.Min, 100*q.Max))
		}
		if p.Hot == 0 {
			row = append(row, "no step gains enough")
		}
		t.AppendRow(row)
	}
	t.AppendSeparator()
	paper := table.Row{"paper, all models (§5.3)", 1000, "", "", ""}
	for _, rate := range rates {
		paper = append(paper, map[float64]string{0.04: "over 80", 0.08: "over 90"}[rate])
	}
	t.AppendRow(paper)
	return t
}

func form(combined bool) string {
	if combined {
		return "combined"
	}
	return "every update"
}

func (r Report) packetTable() table.Writer {
	t := newTable("(B) Recirculations of a packet", table.Row{
		"log", "batches", "placement and packing", "pairs a batch", "packets", "unfilled", "recirculations", "worst", "one pass",
	}, 4)
	last := ""
	for _, p := range r.Packets {
		if name := p.Log + form(p.Combined); last != name {
			t.AppendSeparator()
			last = name
		}
		batches := float64(max(1, p.Batches))
		t.AppendRow(table.Row{
			p.Log, form(p.Combined), string(p.Method), fmt.Sprintf("%.0f", float64(p.Pairs)/batches),
			fmt.Sprintf("%.1f", float64(p.Packets)/batches), percent(p.Unfilled()),
			fmt.Sprintf("%.3f", p.Recirculations), p.Worst, percent(p.None),
		})
	}
	t.AppendSeparator()
	t.AppendRow(table.Row{"paper, both tasks (§5.4)", "", "random", "", "", "", "about 10"})
	t.AppendRow(table.Row{"paper, both tasks (§5.4)", "", "heat-based, Algorithm 1", "", "", "", "below 1"})
	return t
}

func (r Report) laneTable() table.Writer {
	t := newTable("(C) Unfilled lanes of hot frames by batch size", table.Row{
		"log", "batches", "size", "hot pairs a batch", "lane-aligned", "dense",
	}, 3)
	last := ""
	for _, l := range r.Lanes {
		if name := l.Log + form(l.Combined); last != name {
			t.AppendSeparator()
			last = name
		}
		row := table.Row{l.Log, form(l.Combined), l.Size, "-", "-", "-"}
		if l.Batches > 0 {
			row = table.Row{l.Log, form(l.Combined), l.Size, fmt.Sprintf("%.0f", l.HotPairs), percent(l.LaneAligned), percent(l.Dense)}
		}
		t.AppendRow(row)
	}
	return t
}
