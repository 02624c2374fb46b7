// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/study/schedule"
)

// fabric writes a cluster file with three switches, and a hot set of more scalars than one has room
// for.
func fabric(t *testing.T) (config string) {
	t.Helper()
	dir := t.TempDir()
	var rows strings.Builder
	for i := range 1100 { // 66,000 features, each in one row, and some in many
		fmt.Fprintf(&rows, "%d", i%2)
		for j := range 60 {
			fmt.Fprintf(&rows, " %d:1", 60*i+j+100)
		}
		fmt.Fprintf(&rows, " %d:1 %d:1\n", i%10, 10+i%90)
	}
	data := writeFile(t, "rows.libfm", rows.String())
	hot := filepath.Join(dir, "hot.libra")
	stdout, stderr, code := inProcess(t, "hotset", "build", "--data", data, "--out", hot, "--model", "lr", "--rate", "1", "--switches", "3", "--hot-rows", "66000", "--json")
	if code != 0 || !strings.Contains(stdout, `"slots":66000`) {
		t.Fatal(stdout, stderr)
	}
	return writeFile(t, "cluster.yaml", fmt.Sprintf(`
backend: udp
job: {id: 9, hot_set: %s, sync: true}
switch: {address: 127.0.0.1, control: 127.0.0.1:7700}
switches:
  - {name: core, address: 127.0.0.1, links: [left, right], slots: 30000}
  - {name: left, address: 127.0.0.11, slots: 30000}
  - {name: right, address: 127.0.0.12, slots: 30000}
server: {address: 127.0.0.2, control: 127.0.0.2:7700, at: core}
workers:
  - {id: 1, address: 127.0.0.3, at: left}
  - {id: 2, address: 127.0.0.4, at: right}
model: {kind: lr, batch: 512}
data: {train: %s}
`, hot, data))
}

func TestPlanCommand(t *testing.T) {
	config := fabric(t)
	costs := map[string]float64{}
	for _, objective := range []string{plan.Links, plan.Paper, plan.Room} {
		stdout, stderr, code := inProcess(t, "plan", "--config", config, "--objective", objective, "--pushes", "40", "--parts", "60", "--json")
		var r plan.Report
		if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
		}
		if len(r.Parts) != 60 || r.Pushes != 40 || r.Batch != 512 || len(r.Switches) != 3 || len(r.Links) != 5 || r.Objective != objective {
			t.Errorf("%s: %+v", objective, r)
		}
		costs[objective] = r.Cost.Plan
	}
	if costs[plan.Links] > costs[plan.Paper] {
		t.Errorf("bytes times links: %v", costs)
	}
	stdout, stderr, code := inProcess(t, "plan", "--config", config)
	for _, want := range []string{"occupancy", "ranks", "harvests", "lower bound of all plans", "job.plan names"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, no %q\n%s%s", code, want, stdout, stderr)
		}
	}
}

func TestPlanOfBadFiles(t *testing.T) {
	config := fabric(t)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"slots: 30000", "slots: 1000", "cluster.yaml: switches[0].slots: a part has 1032 slots, and switch core has 1000: give it more slots, or let it be plain"},
		{"links: [left, right]", "links: [left]", `switches[2].links: no path leads from "right" to "core"`},
		{"hot_set: ", "hot_set: /no", "job.hot_set: "},
		{"kind: lr", "kind: fm, factors: 3", "its rows have 1 scalars, those of the model 4: build it for this model"},
	} {
		changed := writeFile(t, "cluster.yaml", strings.Replace(string(text), c.old, c.new, 1))
		if _, stderr, code := inProcess(t, "plan", "--config", changed); code != exitFailure || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d\n%s", c.new, code, stderr)
		}
	}
}

func TestBenchSchedule(t *testing.T) {
	folder := t.TempDir()
	stdout, stderr, code := inProcess(t, "bench", "schedule", "--placements", "1", "--workers", "8", "--deviations", "0,0.4", "--models", "100", "--out", folder, "--json")
	var r schedule.Report
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil || len(r.Points) == 0 {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	plots, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil || len(plots) != 8 {
		t.Errorf("plots %v, %v", plots, err)
	}
}
