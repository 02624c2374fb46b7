// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/simulation"
)

// The same seeds give the same lives in two processes, and end well.
func TestSimulate(t *testing.T) {
	var reports [2]simulation.Report
	for i := range reports {
		stdout, stderr, code := output(t, "simulate", "--seeds", "1-3", "--only", "loss,crash", "--json")
		if err := json.Unmarshal([]byte(stdout), &reports[i]); code != 0 || err != nil {
			t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
		}
	}
	r := reports[0]
	if r.Workers != reports[1].Workers || r.Clusters != reports[1].Clusters {
		t.Errorf("two runs of the same seeds: %+v", reports)
	}
	if r.First != 1 || r.Seeds != 3 || r.Workers.Lives != 3 || r.Clusters.Lives != 3 || r.Kinds != "loss,crash" || r.Clusters.Trainings == 0 {
		t.Errorf("%+v", r)
	}
	stdout, stderr, code := output(t, "simulate", "--seed", "3", "--lives", "workers", "--trace")
	if code != 0 || !strings.HasPrefix(stdout, "seed 3: ") || !strings.Contains(stdout, "Lives of the 1 seeds from 3 on") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

func TestSimulateRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--seed 1 --seeds 1-2":      "--seed and --seeds exclude each other",
		"--seeds 5":                 `--seeds: "5": two numbers are needed, such as 1-100`,
		"--seeds 5-4":               `--seeds: "5-4"`,
		"--seeds 1-2x":              `--seeds: "1-2x"`,
		"--seeds 1-2 --duration 0s": "--duration 0s: it must be above zero",
		"--only rain":               `--only rain: "rain" is none of none, loss, duplicate`,
		"--lives cats":              `--lives cats: "cats" is none of workers, clusters`,
		"--seed 1 more":             `unexpected argument "more"`,
	} {
		stdout, stderr, code := output(t, append([]string{"simulate"}, strings.Fields(args)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}
