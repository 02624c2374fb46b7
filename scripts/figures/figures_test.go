// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	benchaggregator "github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/bench/tenants"
)

// document returns one of documents.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocumentsAreRendered wants each table once, with the rows of its definition,
// and the command that measures it in the same document.
func TestDocumentsAreRendered(t *testing.T) {
	found := map[string]int{}
	for _, path := range documents {
		text := document(t, path)
		if rendered, err := render(text, results{}); err != nil {
			t.Errorf("%s: %v", path, err)
		} else if diff := cmp.Diff(text, rendered); diff != "" {
			t.Errorf("%s is not what rendering without results leaves (-document +rendered):\n%s", path, diff)
		}
		for _, part := range strings.Split(text, beginMark)[1:] {
			name, part, _ := strings.Cut(part, markEnd)
			found[name]++
			old, _, _ := strings.Cut(part, endMark)
			rows := oldRows(old)
			for _, row := range tables[name].rows {
				if rows[row.label] == "" {
					t.Errorf("%s: the table %s has no row %q", path, name, row.label)
				}
				if !strings.Contains(strings.Join(strings.Fields(text), " "), commands[row.source]) && !strings.Contains(text, "`make figures ONLY="+row.source+"`") {
					t.Errorf("%s does not name %q, which measures the table %s", path, commands[row.source], name)
				}
			}
			if len(rows) != len(tables[name].rows)+1 {
				t.Errorf("%s: the table %s has %d rows, want %d and a header", path, name, len(rows), len(tables[name].rows))
			}
		}
	}
	for name := range tables {
		if found[name] != 1 {
			t.Errorf("the table %s is in the documents %d times", name, found[name])
		}
	}
}

// example has a result for every row.
func example() (r results) {
	half := 0.5
	for _, size := range sizes {
		for _, test := range engine.Tests() {
			for _, b := range engine.Baselines()[1:] {
				q := engine.Ratio{Test: test, Size: size, Baseline: b, Paired: float64(size) / 100}
				if test == engine.RequestResponse {
					q.P50, q.P99 = &half, &half
				}
				r.engine.Ratios = append(r.engine.Ratios, q)
			}
		}
	}
	for _, workers := range []int{4, 8} {
		for _, batch := range []int{32, 4096} {
			for i, b := range push.Baselines() {
				r.push.Results = append(r.push.Results, push.Result{
					Workers: workers, Batch: batch, Baseline: b, Ratio: float64(i), NsTotal: 7,
					Figures: push.Figures{PairsPerSecond: float64(batch) * 1e6, Cost: push.Cost{NsWorker: 1, NsKernel: 2, NsServer: 4}},
				})
			}
		}
	}
	for _, a := range benchaggregator.Arithmetics() {
		for _, stripes := range []int{1, 10} {
			r.aggregator.Results = append(r.aggregator.Results, benchaggregator.Result{Arithmetic: a.String(), Stripes: stripes, NsPerPair: 3, NsPerFrame: 99})
		}
	}
	jobs := []tenants.Job{{Mean: 20 * time.Millisecond, P95: 21 * time.Millisecond}, {Mean: 19 * time.Millisecond, P95: 22 * time.Millisecond}}
	r.tenants = tenants.Report{Harvest: 20 * time.Millisecond, Phases: []tenants.Phase{
		{Tenants: jobs}, {Tenants: jobs, Flood: tenants.Flood{FloodFrames: 8000, FloodSeconds: 2}, Churn: tenants.Churn{Joins: 10, Jobs: 20, ChurnSeconds: 2}},
	}}
	r.soak = soak.Report{Accounts: 1234, Events: make([]soak.Event, 5), Links: []*soak.LinkReport{{Sent: 3e6}, {Sent: 4e6}}}
	return r
}

func TestRenderingIsStable(t *testing.T) {
	for _, path := range documents {
		text := document(t, path)
		once, err := render(text, example())
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := render(once, example()); err != nil || twice != once {
			t.Errorf("%s changes when it is rendered again: %v\n%s", path, err, cmp.Diff(once, twice))
		}
		before, after := strings.Split(text, "\n"), strings.Split(once, "\n")
		if len(before) != len(after) {
			t.Fatalf("%s has %d lines after %d", path, len(after), len(before))
		}
		inside := false
		for i, line := range before {
			inside = strings.HasPrefix(line, beginMark) || inside && line != endMark
			if !inside && line != after[i] {
				t.Errorf("%s: line %d is outside of all marks and becomes %q", path, i+1, after[i])
			}
			if inside && strings.HasPrefix(line, "| ") && line == after[i] && slices.ContainsFunc([]string{"1.90", "M pairs/s"}, func(s string) bool { return strings.Contains(line, s) }) {
				t.Errorf("%s: line %d stays %q", path, i+1, line)
			}
		}
	}
}

func TestFigures(t *testing.T) {
	r := example()
	for name, want := range map[string][]string{
		"bare":   {"| frame rate of pushes of prepared batches, of bare's | 1.90 | 14.14 | 0.9, 0.85 |"},
		"engine": {"| request–response, p99: UDP socket | 0.50 | 0.50 | at most 0.7 |"},
		"push":   {"| 8, 4,096, ZeroMQ, our table | 4096.0 | 1.0 | 2.0 | | 4.0 | 7 |"},
		"readme": {
			"transmit, receive, echo | 1.90 / 14.14, 1.90 / 14.14, 1.90 / 14.14 of its rate | `make figures ONLY=engine` |",
			"with our table | 4096.0 M pairs/s: 1.0, 2.0 times their rate | `make figures ONLY=push` |",
			"| 3.0, 3.0, 3 ns a pair, one stripe of `exact` 99 ns | `make figures ONLY=aggregator` |",
		},
		"measured": {
			"| 3.0, 3.0, 3 ns a pair, one stripe of `exact` 99 ns | `libra bench aggregator --measure cost",
			"| 4,000 frames, 5 senders and 10 jobs a second: two other jobs' sums exact, their mean harvest interval at most 20.00 ms of 20.00, p95 at most 22.00; undisturbed 20.00 and 22.00 |",
			"| 5 restarts of queues, interfaces, links and processes: 7 M packets, 0 frames leaked in 1,234 accounts,",
		},
	} {
		got := tables[name].markdown(r, nil)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("the table %s lacks %q:\n%s", name, w, got)
			}
		}
		if n := strings.Count(got, "\n| "); n != len(tables[name].rows)+1 {
			t.Errorf("the table %s has %d lines, want all rows and a header:\n%s", name, n, got)
		}
	}
	r.soak.Failures = []string{"a frame leaked"}
	if trouble(r) != nil {
		t.Error("a soak that failed is documented")
	}
}

func TestRowsWithoutResultStay(t *testing.T) {
	const old = "before\n<!-- figures bare -->\n| of an echo of whole frames, without an aggregator | 7 | 8 | |\n| gone | 1 | 2 | |\n<!-- end figures -->\nafter\n"
	got, err := render(old, results{})
	want := "before\n<!-- figures bare -->\n\n| | 190 bytes | 1414 bytes | wanted |\n|---|---|---|---|\n| of an echo of whole frames, without an aggregator | 7 | 8 | |\n\n<!-- end figures -->\nafter\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
}

func TestMarksMustMatch(t *testing.T) {
	for _, text := range []string{
		"<!-- figures bare\ntable", "<!-- figures bare -->\ntable", "<!-- figures nothing -->\n<!-- end figures -->\n",
		"<!-- figures bare -->\n<!-- figures push -->\n<!-- end figures -->\n",
	} {
		if _, err := render(text, results{}); !errors.Is(err, errMark) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// TestMeasuredResultsAreRead has a program that prints its arguments and a result.
func TestMeasuredResultsAreRead(t *testing.T) {
	dir := t.TempDir()
	want := example()
	text, err := json.Marshal(want.push)
	if err != nil {
		t.Fatal(err)
	}
	libra := filepath.Join(dir, "libra")
	script := "#!/bin/sh\necho \"$@\" >" + libra + ".arguments\ncat <<'END'\n" + string(text) + "\nEND\n"
	if err := os.WriteFile(libra, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := measure(libra, "push", dir); err != nil {
		t.Fatal(err)
	}
	if arguments, err := os.ReadFile(libra + ".arguments"); err != nil || "libra "+string(arguments) != commands["push"]+" --json\n" {
		t.Errorf("ran with %q, %v", arguments, err)
	}
	got, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := tables["push"].markdown(got, nil), tables["push"].markdown(want, nil); a != b {
		t.Error(cmp.Diff(b, a))
	}
	if cells := tables["bare"].rows[0].cells(got); cells != nil {
		t.Errorf("the engine was not measured, but there is %v", cells)
	}
	if err := os.WriteFile(filepath.Join(dir, "soak.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(dir); err == nil || !strings.Contains(err.Error(), "soak.json") {
		t.Errorf("a broken result: %v", err)
	}
	if err := measure("/bin/false", "push", dir); err == nil || !strings.Contains(err.Error(), "libra bench push") {
		t.Errorf("a command that fails: %v", err)
	}
}
