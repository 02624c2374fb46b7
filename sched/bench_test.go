// SPDX-License-Identifier: Apache-2.0

package sched

import "testing"

// BenchmarkSolve is of the sizes of the paper's simulation on a fat tree: 40 workers, 16 switches,
// 60 parts. It also reports how far plans are above the bound.
func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct {
		name         string
		size, memory int
		exponent     float64
	}{{"even", 4, 64, 0}, {"zipf", 4, 64, 1}, {"scarce", 16, 64, 0.6}} {
		b.Run(c.name, func(b *testing.B) {
			worst, sum, n := 0.0, 0.0, 0
			for b.Loop() {
				s := mustSolve(b, fill(fatTree(b, uint64(n), 40), 60, c.size, c.memory, c.exponent))
				worst, sum, n = max(worst, s.Gap()), sum+s.Gap(), n+1
			}
			b.ReportMetric(100*worst, "worst-%")
			b.ReportMetric(100*sum/float64(n), "mean-%")
		})
	}
}
