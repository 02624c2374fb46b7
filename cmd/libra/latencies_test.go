// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/telemetry"
)

func TestLatenciesAreATable(t *testing.T) {
	var b strings.Builder
	printLatencies(report.NewPrinter(&b), "Times", nil)
	if b.Len() > 0 {
		t.Errorf("no times are printed as %q", b.String())
	}
	printLatencies(report.NewPrinter(&b), "Times", []telemetry.Summary{{
		Op: "cold", Part: "server queue", Peer: "worker 3", Count: 12345,
		Mean: 1234567, P50: 987654, P90: 2 * time.Millisecond, P99: 3_000_000_000, P999: 12,
	}})
	for _, want := range []string{"Times\n", "p99.9", "cold", "server queue", "worker 3", "12,345", "1.23ms", "988µs", "2ms", "3s", "12ns"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
