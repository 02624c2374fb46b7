// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/telemetry"
)

// printLatencies prints a table of measured times, if there are any.
func printLatencies(out *report.Printer, title string, all []telemetry.Summary) {
	if len(all) == 0 {
		return
	}
	var rows [][]any
	for _, s := range all {
		rows = append(rows, []any{s.Op, s.Part, s.Peer, count(s.Count),
			shortTime(s.Mean), shortTime(s.P50), shortTime(s.P90), shortTime(s.P99), shortTime(s.P999)})
	}
	out.Table(title, []string{"of", "part", "peer", "count", "mean", "p50", "p90", "p99", "p99.9"}, rows)
}

// shortTime rounds a time to three digits: it is measured no better.
func shortTime(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs() >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}
