package engine

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	parts := []string{
		fmt.Sprintf("%s, %d CPUs, Linux %s, %s; medians of %d rounds of %v\n",
			cmp.Or(r.Machine.CPU, "unknown CPU"), r.Machine.CPUs, r.Machine.Kernel, r.Machine.GoVersion, r.Rounds, r.Duration),
	}
	for _, render := range []func() string{r.resultTable, r.targetTable, r.unavailableTable} {
		if s := render(); s != "" {
			parts = append(parts, s+"\n")
		}
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n"))
	return err
}

// resultTable has a row for each result. The ratios are PeerLibra's rate, or
// median latency, divided by the peer's.
func (r *Report) resultTable() string {
	if len(r.Results) == 0 {
		return ""
	}
	t := newTable("test", "size", "peer", "Mpps", "min", "max", "libra/peer", "user ns", "kernel ns", "far ns", "p50 µs", "p99 µs", "p50 ratio", "p99 ratio", "dropped")
	previous := Result{}
	for _, res := range r.Results {
		if previous.Test != "" && (previous.Test != res.Test || previous.Size != res.Size) {
			t.AppendSeparator()
		}
		previous = res
		ratio, p50, p99 := "", "", ""
		if i := slices.IndexFunc(r.Ratios, func(q Ratio) bool {
			return q.Test == res.Test && q.Size == res.Size && q.Peer == res.Peer
		}); i >= 0 {
			q := r.Ratios[i]
			ratio, p50, p99 = fmt.Sprintf("%.2f", q.OfMedians), optional(q.P50, "%.2f"), optional(q.P99, "%.2f")
		}
		t.AppendRow(table.Row{
			res.Test, res.Size, res.Peer, mpps(res.PPS), mpps(res.PPSMin), mpps(res.PPSMax), ratio,
			fmt.Sprintf("%.0f", res.NsUser), fmt.Sprintf("%.0f", res.NsKernel), fmt.Sprintf("%.0f", res.NsOpposite),
			optional(res.P50us, "%.1f"), optional(res.P99us, "%.1f"), p50, p99, res.mainLoss(),
		})
	}
	return t.Render()
}

func (r *Report) targetTable() string {
	if len(r.Targets) == 0 {
		return ""
	}
	t := newTable("target", "size", "against", "ratio of", "want", "got", "")
	for _, g := range r.Targets {
		want, verdict := fmt.Sprintf(">= %.2f", g.Want), "missed"
		if g.Figure != "pps" {
			want = fmt.Sprintf("<= %.2f", g.Want)
		}
		if g.Met {
			verdict = "met"
		}
		t.AppendRow(table.Row{g.Test, g.Size, g.Peer, g.Figure, want, fmt.Sprintf("%.2f", g.Got), verdict})
	}
	return t.Render()
}

func (r *Report) unavailableTable() string {
	if len(r.Unavailable) == 0 {
		return ""
	}
	t := newTable("not measured", "test", "size", "reason")
	for _, u := range r.Unavailable {
		size := ""
		if u.Size > 0 {
			size = fmt.Sprint(u.Size)
		}
		reason := u.Reason
		if u.Install != "" {
			reason += "\nto have it: " + u.Install
		}
		t.AppendRow(table.Row{u.Peer, u.Test, size, text.WrapSoft(reason, 100)})
	}
	return t.Render()
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	// Numbers, which are strings here, stand right; names stand left.
	var columns []table.ColumnConfig
	for i, name := range header {
		switch name {
		case "test", "peer", "dropped", "target", "against", "ratio of", "", "not measured", "reason":
		default:
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight})
		}
	}
	t.SetColumnConfigs(columns)
	return t
}

func mpps(pps float64) string { return fmt.Sprintf("%.3f", pps/1e6) }

func optional(v *float64, format string) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf(format, *v)
}

// mainLoss names the cause that lost most frames; the report has them all.
func (r *Result) mainLoss() string {
	if len(r.Drops) == 0 {
		return ""
	}
	causes := slices.SortedFunc(maps.Keys(r.Drops), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Drops[b], r.Drops[a]), cmp.Compare(a, b))
	})
	return fmt.Sprintf("%d %s", r.Drops[causes[0]], causes[0])
}
