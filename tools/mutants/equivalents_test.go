// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// equivalentSteps is an entry for a mutant of the sample.
var equivalentSteps = entry{sampleDir + "/sample.go", "Steps", "steps++", "_ = steps", "why"}

func TestEquivalentsMustMatch(t *testing.T) {
	root, mutants := sampleMutants(t)
	if err := (equivalents{equivalentSteps}).markMutants(root, sampleDir, mutants); err != nil || mutants[1].Reason != "why" {
		t.Errorf("%v, reason %q", err, mutants[1].Reason)
	}
	for _, m := range mutants {
		if m != mutants[1] && m.Reason != "" {
			t.Errorf("%v has the reason of another", m)
		}
	}
	stale := equivalentSteps
	stale.New = "steps--"
	err := (equivalents{equivalentSteps, stale}).markMutants(root, sampleDir, mutants)
	if err == nil || !strings.Contains(err.Error(), "steps--") {
		t.Errorf("an entry that matches no mutant: %v", err)
	}
	if err := (equivalents{stale}).markMutants(root, "testdata", mutants); err != nil {
		t.Errorf("an entry of another package: %v", err)
	}
	name := t.TempDir() + "/list.json"
	for _, text := range []string{`[{"file": "a.go", "new": "x"}]`, `[{"fill": "a.go"}]`, `{`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadEquivalents(name); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// The lines of the report can be copied to the list, and so can a part of one, in any layout and
// with other comments.
func TestEntriesInAnyLayout(t *testing.T) {
	root, mutants := sampleMutants(t)
	for _, m := range mutants {
		e := entry{m.File, m.Func, m.Old, m.New, "copied"}
		if err := (equivalents{e}).markMutants(root, sampleDir, mutants); err != nil || m.Reason != "copied" {
			t.Errorf("%v, reason %q", err, m.Reason)
		}
	}
	of := func(fn, before, after string) entry { return entry{sampleDir + "/sample.go", fn, before, after, "why"} }
	for want, e := range map[int]entry{
		0: of("Limit", "if n > limit { … }", "if n > limit { _ = slog.Info; _ = n; _ = limit }"),
		1: of("Steps", "steps /* up */ ++ // one more", "_=steps"),
		3: of("Apply", "if ok {\n\tstore(\n\t\tset, \"a\",\n\t\t\"b\",\n\t);\n}", "if ok {\n\t_ = set\n}"),
		4: of("Apply", `"a", "b"`, `"b", "a"`),
		7: of("Twice", "twice *= 2", "_ = twice"),
	} {
		mutants[want].Reason = ""
		if err := (equivalents{e}).markMutants(root, sampleDir, mutants); err != nil || mutants[want].Reason != "why" {
			t.Errorf("%v: %v, mutant %v", e, err, mutants[want])
		}
	}
}

// An entry whose place does not exist exactly once, or that changes nothing, is an error.
func TestEntriesThatAreStale(t *testing.T) {
	root, _ := sampleMutants(t)
	for want, change := range map[string]func(*entry){
		"no such file":       func(e *entry) { e.File = sampleDir + "/other.go" },
		"0 functions Stairs": func(e *entry) { e.Func = "Stairs" },
		"occurs 0 times":     func(e *entry) { e.Old = "steps += 1" },
		"occurs 3 times":     func(e *entry) { e.Old = "steps" },
		`"" occurs 0 times`:  func(e *entry) { e.Old = "" },
		"changes nothing":    func(e *entry) { e.New = "steps ++ // again" },
	} {
		e := equivalentSteps
		change(&e)
		if _, err := e.locatePlace(root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestEquivalentsAreOfTargets looks at the list itself: each entry is of a
// package that is mutated, so that a run checks it.
func TestEquivalentsAreOfTargets(t *testing.T) {
	list, err := loadEquivalents("equivalents.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		dir := e.File[:max(strings.LastIndexByte(e.File, '/'), 0)]
		if !slices.Contains(dirs(), dir) {
			t.Errorf("%s is of no package that is mutated", e.File)
		}
	}
}

// The place of each entry exists once. Only a run over the package finds its mutants, but it is
// the code that changes.
func TestEquivalentsAreCurrent(t *testing.T) {
	list, err := loadEquivalents("equivalents.json")
	if err != nil {
		t.Fatal(err)
	}
	type change struct{ file, changed string }
	changes := map[change]entry{}
	for _, e := range list {
		p, err := e.locatePlace(libra)
		if err != nil {
			t.Error(err)
			continue
		}
		c := change{e.File, p.changed}
		if other, twice := changes[c]; twice {
			t.Errorf("%s, %s: %q and %q are the same change", e.File, e.Func, other.New, e.New)
		}
		changes[c] = e
	}
}
