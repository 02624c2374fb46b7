// SPDX-License-Identifier: Apache-2.0

package breakdown

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/telemetry"
)

// Each part of a row is counted where it belongs, and what is unknown of a row nowhere.
func TestPartsAreCountedByPair(t *testing.T) {
	b := New()
	row := func(op telemetry.Op, state telemetry.State, worker, server uint16) *telemetry.Row {
		return &telemetry.Row{State: state, ServerQueue: 3000, ServerProcess: 4000, Network: 5000,
			Record: telemetry.Record{Op: op, Worker: worker, Server: server, Queue: 1000, Process: 2000, Repeat: 9000, Total: 15000}}
	}
	for range 3 {
		b.Add(row(telemetry.Pull, telemetry.Whole, 2, 1))
	}
	b.Add(row(telemetry.Pull, telemetry.Half, 2, 0))
	b.Add(row(telemetry.Pull, telemetry.Resent, 2, 1))
	b.Add(row(telemetry.Hot, telemetry.Whole, 1, telemetry.NoServer))
	type line struct {
		what   string
		server int
		count  uint64
		mean   time.Duration
	}
	var got []line
	for _, s := range b.All() {
		server := -1
		if s.Server != nil {
			server = *s.Server
		}
		got = append(got, line{s.Op + " " + s.Part, server, s.Count, s.Mean})
		if s.Worker != 2 && s.Op == "pull" || s.P50.Seconds() < s.Mean.Seconds()*0.9 || s.P999.Seconds() > s.Mean.Seconds()*1.1 {
			t.Errorf("%+v", s)
		}
	}
	want := []line{
		{"hot total", -1, 1, 15000}, {"hot network", -1, 1, 5000}, {"hot worker queue", -1, 1, 1000}, {"hot worker process", -1, 1, 2000},
		{"pull total", 0, 1, 15000}, {"pull worker queue", 0, 1, 1000}, {"pull worker process", 0, 1, 2000},
		{"pull total", 1, 4, 15000}, {"pull network", 1, 3, 5000}, {"pull server queue", 1, 3, 3000}, {"pull server process", 1, 3, 4000},
		{"pull worker queue", 1, 3, 1000}, {"pull worker process", 1, 3, 2000}, {"pull repeat", 1, 1, 9000},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if n := b.Distribution(telemetry.Pull, telemetry.Total).Count(); n != 5 {
		t.Errorf("%d totals of pulls", n)
	}
	var text strings.Builder
	PrintTimes(report.NewPrinter(&text), "times", b.All())
	if out := text.String(); !strings.Contains(out, "worker queue") || !strings.Contains(out, "p99.9") {
		t.Errorf("%s", out)
	}
}

// Pictures have a curve for each part, which rises to 1.
func TestCDFsRise(t *testing.T) {
	b := New()
	for i := range 1000 {
		d := time.Duration(i) * time.Microsecond
		b.Add(&telemetry.Row{Record: telemetry.Record{Op: telemetry.Cold, Queue: d, Total: 2 * d}, Network: d})
	}
	charts := b.CDFs()
	if len(charts) != 1 || charts[0].Name != "latency-cold" {
		t.Fatalf("%d charts", len(charts))
	}
	names := map[string]bool{}
	for _, s := range charts[0].Series {
		names[s.Name] = true
		for i, p := range s.Points {
			if i > 0 && (p.X < s.Points[i-1].X || p.Y <= s.Points[i-1].Y) {
				t.Errorf("%s falls at %v", s.Name, p)
			}
		}
		if last := s.Points[len(s.Points)-1]; last.Y != 1 || s.Name == "total" && (last.X < 1900 || last.X > 2200) {
			t.Errorf("%s ends at %v", s.Name, last)
		}
	}
	if !names["total"] || !names["network"] || !names["worker queue"] || names["worker process"] {
		t.Errorf("%v", names) // processing took no time, which a logarithmic axis does not have
	}
	if _, err := chart.Write(t.TempDir(), charts); err != nil {
		t.Error(err)
	}
}
