// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchAggregatorUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"test":       {[]string{"bench", "aggregator", "--measure", "speed"}, exitUsage, []string{`"speed"`, "cost"}},
		"arithmetic": {[]string{"bench", "aggregator", "--arithmetics", "float"}, exitUsage, []string{"--arithmetics", `"float"`, "lut"}},
		"mode":       {[]string{"bench", "aggregator", "--modes", "async"}, exitUsage, []string{"--modes", `"async"`, "combine"}},
		"backend":    {[]string{"bench", "aggregator", "--backends", "rdma"}, exitUsage, []string{"--backends", `"rdma"`, "udp"}},
		"study":      {[]string{"lut", "study", "--measure", "cost"}, exitUsage, []string{`"cost"`, "numbers"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := output(t, c.args...)
			if code != c.code || stdout != "" {
				t.Errorf("exit code %d, want %d; standard output %q", code, c.code, stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error does not contain %q:\n%s", want, stderr)
				}
			}
		})
	}
}

func TestBenchAggregatorAsJSON(t *testing.T) {
	t.Parallel()
	plots := t.TempDir()
	stdout, stderr, code := output(t, "bench", "aggregator", "--measure", "negotiation", "--backends", "udp", "--arithmetics", "fixed",
		"--workers", "2", "--parameters", "500", "--rounds", "1", "--duration", "1ms", "--out", plots, "--json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var r struct {
		Results      []any
		Negotiations []struct{ Workers, Iterations int }
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	if r.Results == nil || len(r.Negotiations) != 1 || r.Negotiations[0].Workers != 2 || r.Negotiations[0].Iterations < 1 {
		t.Errorf("report %+v", r)
	}
	if _, err := os.Stat(filepath.Join(plots, "negotiation.svg")); err != nil {
		t.Error(err)
	}
}

func TestP4StudyAsJSON(t *testing.T) {
	stdout, stderr, code := output(t, "p4", "study", "--json")
	if code != 0 || stderr != "" {
		t.Fatal(stderr)
	}
	var r struct {
		Programs []struct {
			Name           string
			Stages         int
			Recirculations int
		}
		Stages []struct{ Steps []string }
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%q: %v", stdout, err)
	}
	if len(r.Programs) != 3 || r.Programs[0].Stages != 9 || r.Programs[2].Stages != len(r.Stages) || r.Programs[2].Recirculations != 0 {
		t.Errorf("report %+v", r)
	}
}

// The former name of 'libra p4 study' prints the same to standard output, and the new name to
// standard error; help has only the new one.
func TestP4StudyByItsFormerName(t *testing.T) {
	want, _, _ := output(t, "p4", "study", "--json")
	stdout, stderr, code := output(t, "bench", "p4", "--json")
	if code != 0 || stdout != want || !strings.Contains(stderr, "'libra p4 study'") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	if help, _, _ := output(t, "bench", "--help"); strings.Contains(help, "p4") {
		t.Errorf("help of bench:\n%s", help)
	}
}

// TestLutStudyAsJSON has the fields of package arithmetic at the top.
func TestLutStudyAsJSON(t *testing.T) {
	t.Parallel()
	data := writeFile(t, "rows.libfm", clicks(3000, 1)) // the synthetic log would be trained on for ten seconds
	stdout, stderr, code := output(t, "lut", "study", "--measure", "numbers", "--pairs", "2000", "--rounds", "1",
		"--data", data, "--json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var r map[string]json.RawMessage
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"precision", "long_sums", "memory"} {
		if len(r[field]) < 10 {
			t.Errorf("%s is %q", field, r[field])
		}
	}
	if r["aggregator"] != nil {
		t.Errorf("what was not asked for is %s", r["aggregator"])
	}
}
