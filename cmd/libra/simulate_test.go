// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/simulation"
)

// The same seeds give the same lives in two processes, and end without a violation.
func TestSimulate(t *testing.T) {
	t.Parallel()
	var reports [2]simulation.Report
	for i := range reports {
		stdout, stderr, code := output(t, "simulate", "--seeds", "1-3", "--only", "loss,crash", "--json")
		if err := json.Unmarshal([]byte(stdout), &reports[i]); code != 0 || err != nil {
			t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
		}
	}
	r := reports[0]
	if r.Workers != reports[1].Workers || r.Clusters != reports[1].Clusters || r.Agents != reports[1].Agents {
		t.Errorf("two runs of the same seeds: %+v", reports)
	}
	if r.First != 1 || r.Seeds != 3 || r.Workers.Lives != 3 || r.Clusters.Lives != 3 || r.Agents.Lives != 3 || r.Kinds != "loss,crash" || r.Clusters.Trainings == 0 {
		t.Errorf("%+v", r)
	}
	stdout, stderr, code := output(t, "simulate", "--seed", "3", "--lives", "workers", "--trace")
	if code != 0 || !strings.HasPrefix(stdout, "seed 3: ") || !strings.Contains(stdout, "Lives of the 1 seeds from 3 on") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

// A seed has the same trace, byte by byte, in two processes, on one processor and on two, with and
// without the race detector.
func TestSameTraceInEveryProcess(t *testing.T) {
	t.Parallel()
	trace := func(life, seed string, change func(*exec.Cmd)) string {
		cmd := libra(t.Context(), "simulate", "--seed", seed, "--lives", life, "--trace")
		change(cmd)
		out, err := cmd.Output()
		lines, _, found := strings.Cut(string(out), "\nLives of the ") // the rest contains wall time
		if err != nil || !found || len(lines) < 1000 {
			t.Fatalf("%v: %v, a trace of %d bytes", cmd, err, len(lines))
		}
		return lines
	}
	others := map[string]func(*exec.Cmd){
		"again":            func(*exec.Cmd) {},
		"on one processor": func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "GOMAXPROCS=1") },
	}
	if raceEnabled() {
		plain := filepath.Join(t.TempDir(), "libra")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", plain, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		others["without the race detector"] = func(cmd *exec.Cmd) { cmd.Path = plain }
	} else {
		t.Log("the tests run without -race: traces with it are not compared")
	}
	for _, life := range []string{"workers", "clusters", "agents", "reducers", "rings"} {
		for seed := range 2 {
			one := strconv.Itoa(seed + 1)
			want := trace(life, one, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "GOMAXPROCS=2") })
			for how, change := range others {
				if got := trace(life, one, change); got != want {
					a, b := strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n")
					n := 0
					for n < min(len(a), len(b)) && a[n] == b[n] {
						n++
					}
					t.Errorf("seed %s of %s, %s: another trace from line %d on:\n%v\n%v", one, life, how, n+1, a[n:min(len(a), n+3)], b[n:min(len(b), n+3)])
				}
			}
		}
	}
}

// raceEnabled reports whether this program was built with the race detector.
func raceEnabled() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--seed 1 --seeds 1-2":      "--seed and --seeds exclude each other",
		"--seeds 5":                 `--seeds: "5": two numbers are needed, such as 1-100`,
		"--seeds 5-4":               `--seeds: "5-4"`,
		"--seeds 1-2x":              `--seeds: "1-2x"`,
		"--seeds 1-2 --duration 0s": "--duration 0s: it must be above zero",
		"--only rain":               `--only rain: "rain" is none of none, loss, duplicate`,
		"--lives cats":              `--lives cats: "cats" is none of workers, clusters, agents, reducers, rings`,
		"--seed 1 more":             `unexpected argument "more"`,
	} {
		stdout, stderr, code := output(t, append([]string{"simulate"}, strings.Fields(args)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}
