// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRunnerTellsResultsApart runs the sample's tests against its mutants, one
// of which never ends and one of which is listed as equivalent by mistake.
func TestRunnerTellsResultsApart(t *testing.T) {
	root, mutants := sampleMutants(t)
	file := mutants[1].File
	_, p := loadSample(t)
	text := p.text["sample.go"]
	at := bytes.Index(text, []byte("i--"))
	endless := &mutant{File: file, Kind: "INCREMENT_DECREMENT", text: text, start: at + 1, end: at + 3, with: "++"}
	unfit := &mutant{File: file, text: text, start: at, end: at + 3, with: `"not a statement`}
	at = bytes.Index(text, []byte(`"n", n`))
	// A key that is not a string.
	vetted := &mutant{File: file, text: text, start: at, end: at + len(`"n", n`), with: `n, "n"`}
	mutants = append(mutants, endless, unfit, vetted)
	mutants[0].Reason = "a mistake"
	mutants[4].Reason = "the second key is not used" // a lie, but the test cannot tell

	before := status(t, root)
	r := runner{root: root, temp: t.TempDir(), target: own(sampleDir), jobs: 2, slack: 3 * time.Second}
	tried, err := r.tryMutants(t.Context(), mutants)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range tried {
		got = append(got, m.Result)
	}
	// Mutant 1 leaves steps at 0; mutant 4 stores another key, which the test accepts.
	want := []string{mistaken, killed, killed, killed, equivalent, killed, killed, killed, timedOut, broken, killed}
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
	for _, m := range mutants {
		if alone := m == unfit; alone != (m.number == 0) {
			t.Errorf("number %d: %v", m.number, m)
		}
	}
	if mutants[1].By != "TestSteps" || endless.By != "TestSteps" {
		t.Errorf("killed by %q, by time by %q", mutants[1].By, endless.By)
	}
	if !strings.Contains(vetted.By, "slog.Info") {
		t.Errorf("refused by go vet with %q", vetted.By)
	}
	if after := status(t, root); after != before {
		t.Errorf("the work tree changed:\n%s", after)
	}
	var results report
	results.addPackage(sampleDir, tried)
	var out strings.Builder
	if results.printPackage(&out, sampleDir, 95) {
		t.Errorf("a mutant that is listed by mistake passes:\n%s", &out)
	}
	c := results.Packages[0]
	if c.Killed != 8 || c.TimedOut != 1 || c.Equivalent != 1 || c.Mistaken != 1 || c.Broken != 1 || c.Survived != 0 {
		t.Errorf("counts %+v", c)
	}
}

// A mutant that the compiler refuses does not keep the others from being tried.
func TestRefusedMutant(t *testing.T) {
	root, mutants := sampleMutants(t)
	_, p := loadSample(t)
	text := p.text["sample.go"]
	at := bytes.Index(text, []byte("i--"))
	refused := &mutant{File: mutants[1].File, text: text, start: at, end: at + 3, with: "undefined()"}
	mutants = append(mutants[1:2], refused)
	r := runner{root: root, temp: t.TempDir(), target: own(sampleDir), jobs: 1, slack: 20 * time.Second}
	if _, err := r.tryMutants(t.Context(), mutants); err != nil || mutants[0].Result != killed || mutants[1].Result != broken {
		t.Errorf("%v: %q and %q", err, mutants[0].Result, mutants[1].Result)
	}
}

// Tests that print nothing for too long are ended, however much time they have.
func TestSilenceIsBounded(t *testing.T) {
	root, _ := sampleMutants(t)
	r := runner{root: root}
	script := t.TempDir() + "/tests"
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho begun\nsleep 3600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := r.runTests(t.Context(), stage{dir: sampleDir}, variant{binary: script}, limits{time.Hour, 5 * time.Second})
	if !errors.Is(err, context.DeadlineExceeded) || string(o.text) != "begun\n" {
		t.Errorf("%v, after %q", err, o.text)
	}
}

// status is what git finds changed in the directory of the sample.
func status(t *testing.T, root string) string {
	out, err := exec.Command("git", "-C", root, "status", "--porcelain", "--ignored", "--", sampleDir).CombinedOutput()
	if err != nil {
		t.Logf("no git: %v: %s", err, out) // the sources may be an archive
	}
	return string(out)
}

func TestRunnerWantsPassingTests(t *testing.T) {
	root, _ := sampleMutants(t)
	r := runner{root: root, temp: t.TempDir(), target: target{sampleDir, []stage{{dir: sampleDir, run: "("}}}, jobs: 1}
	if _, err := r.tryMutants(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "fail without a mutant") {
		t.Errorf("tests that fail by themselves: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.tryMutants(ended, nil); err == nil {
		t.Error("a run that was interrupted ends without an error")
	}
}
