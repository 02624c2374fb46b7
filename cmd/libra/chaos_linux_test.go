// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/bench/chaos"
	"github.com/libra-ina/libra/internal/test/testlog"
)

// A short life with a kill of each role that may die ends with the weights of the reference, and
// its trace has what happened.
func TestChaosEndsAsItsReference(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const seed = 1647 // two workers, whose first trouble comes early
	trace := filepath.Join(t.TempDir(), "trace")
	args := []string{"chaos", "--seed", fmt.Sprint(seed), "--steps", "300", "--only", "pair-kill,loss,late,corrupt"}
	stdout, stderr, code := output(t, append(args, "--json", "--out", trace)...)
	var r chaos.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
		text, _ := os.ReadFile(trace)
		t.Fatalf("code %d, %v\n%s%s", code, err, stderr, text)
	}
	if len(r.Lives) != 1 {
		t.Fatalf("%+v", r)
	}
	l := r.Lives[0]
	if l.Reference == "" || l.Weights != l.Reference || l.Steps < 290 || l.Kills < 2 || l.Rewinds < 1 || l.Dropped == 0 ||
		l.LateCopies == 0 || l.CorruptCopies == 0 || l.Retransmissions == 0 {
		t.Errorf("%+v", l)
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seed 1647: ", "TROUBLE in step ", "pair-kill of the job's aggregator and worker ",
		"server | time=", "all workers join again"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q in the trace:\n%s", want, text)
		}
	}
}

// A difference is found: the last line has the seed, and the exit code is 1.
func TestChaosFindsADifference(t *testing.T) {
	t.Parallel()
	needRoot(t)
	stdout, stderr, code := outputWith(t, []string{alterWeights + "=1"}, "chaos", "--seed", "5", "--steps", "100", "--only", "none")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if last := lines[len(lines)-1]; code != exitFailure ||
		!strings.HasPrefix(last, "seed 5: NOT as the reference: the weights differ from those of the same training in one process: SHA-256 ") {
		t.Errorf("code %d, last line %q\n%s", code, last, stderr)
	}
	for _, want := range []string{"Live it again: libra chaos --seed 5 --steps 100 --only none\n", "The end of the trace", "server has finished"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q:\n%s", want, stdout)
		}
	}
	if !strings.Contains(stderr, "libra: seed 5: the weights differ") {
		t.Error(stderr)
	}
}

// Ctrl-C ends all processes, and leaves no file.
func TestInterruptedChaosLeavesNothing(t *testing.T) {
	t.Parallel()
	needRoot(t)
	temp := t.TempDir()
	cmd := libra(t.Context(), "chaos", "--seed", "6", "--only", "worker-pause", "--out", filepath.Join(temp, "trace"))
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	var out, errs testlog.Log
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var children []string
	for end := time.Now().Add(4 * time.Minute); len(children) < 4; time.Sleep(10 * time.Millisecond) {
		if children = libraChildren(t, cmd.Process.Pid); time.Now().After(end) {
			t.Fatalf("only processes %v begin: %s", children, &errs)
		}
	}
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(errs.String(), interruptedText) {
		t.Errorf("code %d: %s", code, &errs)
	}
	for _, pid := range children {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s is left", pid)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "libra-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// libraChildren returns the process IDs of a process's children.
func libraChildren(t *testing.T, pid int) []string {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range threads {
		text, _ := os.ReadFile(file) // the thread may have ended
		all = append(all, strings.Fields(string(text))...)
	}
	return all
}
