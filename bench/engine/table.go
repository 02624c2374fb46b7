package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/report"
)

// Print writes the report for people. The ratios are Libra's rate, or median
// latency, divided by the baseline's.
func (r *Report) Print(out *report.Printer) {
	var rows [][]any
	for _, res := range r.Results {
		ratio, p50, p99 := "", "", ""
		if q := r.ratio(res); q != nil {
			ratio, p50, p99 = fmt.Sprintf("%.2f", q.OfMedians), optional(q.P50, "%.2f"), optional(q.P99, "%.2f")
		}
		rows = append(rows, []any{
			res.Test, res.Size, res.Baseline, mpps(res.PPS), mpps(res.PPSMin), mpps(res.PPSMax), ratio,
			fmt.Sprintf("%.0f", res.NsUser), fmt.Sprintf("%.0f", res.NsKernel), fmt.Sprintf("%.0f", res.NsOpposite),
			optional(res.P50us, "%.1f"), optional(res.P99us, "%.1f"), p50, p99, res.mainLoss(),
		})
	}
	out.Table(
		fmt.Sprintf("%s, %d CPUs, Linux %s, %s; medians of %d rounds of %v",
			cmp.Or(r.Machine.CPU, "unknown CPU"), r.Machine.CPUs, r.Machine.Kernel, r.Machine.GoVersion, r.Rounds, r.Duration),
		[]string{
			"test", "size", "baseline", "Mpps", "min", "max", "libra/baseline", "user ns", "kernel ns", "far ns",
			"p50 µs", "p99 µs", "p50 ratio", "p99 ratio", "dropped",
		}, rows)
	var targets []harness.Target
	for _, t := range r.Targets {
		targets = append(targets, harness.Target{What: t.String(), Verdict: t.Verdict})
	}
	harness.PrintTargets(out, targets)
	harness.PrintUnavailable(out, r.Unavailable)
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
