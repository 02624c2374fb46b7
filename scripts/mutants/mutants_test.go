// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sampleDir = "scripts/mutants/testdata/sample"

func loadSample(t *testing.T) (string, *loaded) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	p, err := load(t.Context(), root, sampleDir)
	if err != nil {
		t.Fatal(err)
	}
	return root, p
}

// sampleMutants are the mutants of the sample package that are found here.
func sampleMutants(t *testing.T) (string, []*mutant) {
	root, p := loadSample(t)
	mutants := p.own("sample.go")
	slices.SortFunc(mutants, byPlace)
	return root, mutants
}

func TestOwnMutants(t *testing.T) {
	_, mutants := sampleMutants(t)
	var got []string
	for _, m := range mutants {
		got = append(got, m.Kind+" "+m.Func+": "+m.Old+" => "+m.New)
	}
	want := []string{
		// The body of the if logs, too, but the call alone is no mutant.
		`STATEMENT_REMOVAL Limit: if n > limit { slog.Info("limited", "n", n, "limit", limit) return limit } => if n > limit { _ = slog.Info; _ = n; _ = limit }`,
		`STATEMENT_REMOVAL Steps: steps++ => _ = steps`,
		`CONDITION_NEGATION Apply: if ok { => if !(ok) {`,
		`STATEMENT_REMOVAL Apply: if ok { store(set, "a", "b") } => if ok { _ = set }`,
		`ARGUMENT_SWAP Apply: store(set, "a", "b") => store(set, "b", "a")`,
		`STATEMENT_REMOVAL store: func store(set map[string]int, key, _ string) { set[key] = 1 } => func store(set map[string]int, key, _ string) { _ = set; _ = key }`,
		`STATEMENT_REMOVAL Twice: defer func() { twice *= 2 }() => _ = twice`,
		`STATEMENT_REMOVAL Twice: defer func() { twice *= 2 }() => defer func() { _ = twice }()`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("mutants:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Arguments of functions whose result does not depend on their order stay where they are.
func TestArgumentsThatCommute(t *testing.T) {
	_, p := loadSample(t)
	for _, m := range p.own("same.go") {
		if m.Func != "InTurn" {
			t.Errorf("mutant %v", m)
		}
	}
	if m := p.own("same.go"); len(m) != 1 || m[0].New != "return errors.Join(second(), first())" {
		t.Errorf("mutants %v of errors that are made one after the other", m)
	}
}

func TestGremlinsReport(t *testing.T) {
	_, p := loadSample(t)
	report := `{"files": [
		{"file_name": "sample.go", "mutations": [
			{"type": "CONDITIONALS_BOUNDARY", "status": "NOT COVERED", "line": 8, "column": 7},
			{"type": "INCREMENT_DECREMENT", "status": "NOT COVERED", "line": 18, "column": 22}]},
		{"file_name": "elsewhere_darwin.go", "mutations": [{"type": "INVERT_LOGICAL", "line": 1, "column": 1}]}]}`
	mutants, err := p.translate(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.New)
	}
	if want := []string{"if n >= limit {", "for i := n; i > 0; i++ {"}; !slices.Equal(got, want) {
		t.Errorf("mutants %q, want %q", got, want)
	}
	wrong := `{"files": [{"file_name": "sample.go", "mutations": [{"type": "INVERT_LOGICAL", "line": 1, "column": 1}]}]}`
	if _, err := p.translate(strings.NewReader(wrong)); err == nil || !strings.Contains(err.Error(), "sample.go:1:1") {
		t.Errorf("an operator where none is: %v", err)
	}
}

// TestRunnerTellsResultsApart runs the sample's tests against its mutants, one
// of which never ends and one of which is listed as equivalent by mistake.
func TestRunnerTellsResultsApart(t *testing.T) {
	root, mutants := sampleMutants(t)
	file := mutants[1].File
	_, p := loadSample(t)
	at := bytes.Index(p.text["sample.go"], []byte("i--"))
	endless := &mutant{File: file, Kind: "INCREMENT_DECREMENT", text: p.text["sample.go"], start: at + 1, end: at + 3, with: "++"}
	unfit := &mutant{File: file, text: p.text["sample.go"], start: at, end: at + 3, with: `"not a statement`}
	at = bytes.Index(p.text["sample.go"], []byte(`"n", n`))
	vetted := &mutant{File: file, text: p.text["sample.go"], start: at, end: at + len(`"n", n`), with: `n, "n"`} // a key that is no string
	mutants = append(mutants, endless, unfit, vetted)
	mutants[0].Reason = "a mistake"
	mutants[4].Reason = "the second key is not used" // a lie, but the test cannot tell

	before := status(t, root)
	r := runner{root: root, temp: t.TempDir(), target: own(sampleDir), jobs: 2, slack: 3 * time.Second}
	tried, err := r.try(t.Context(), mutants)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range tried {
		got = append(got, m.Result)
	}
	// Mutant 1 leaves steps at 0; 4 stores another key, which is as good.
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
	results.add(sampleDir, tried)
	var out strings.Builder
	if results.print(&out, sampleDir, 95) {
		t.Errorf("a mutant that is listed by mistake passes:\n%s", &out)
	}
	if c := results.Packages[0]; c.Killed != 8 || c.TimedOut != 1 || c.Equivalent != 1 || c.Mistaken != 1 || c.Broken != 1 || c.Survived != 0 {
		t.Errorf("counts %+v", c)
	}
}

// What the compiler refuses does not keep the tests of other mutants from being compiled.
func TestMutantThatSpoilsTheOthers(t *testing.T) {
	root, mutants := sampleMutants(t)
	_, p := loadSample(t)
	at := bytes.Index(p.text["sample.go"], []byte("i--"))
	mutants = append(mutants[1:2], &mutant{File: mutants[1].File, text: p.text["sample.go"], start: at, end: at + 3, with: "undefined()"})
	r := runner{root: root, temp: t.TempDir(), target: own(sampleDir), jobs: 1, slack: 20 * time.Second}
	if _, err := r.try(t.Context(), mutants); err != nil || mutants[0].Result != killed || mutants[1].Result != broken {
		t.Errorf("%v: %q and %q", err, mutants[0].Result, mutants[1].Result)
	}
}

// A function has its copies as functions, with its parameters and results. What is outside functions, and functions with a
// parameter that hides a type, have none.
func TestCopies(t *testing.T) {
	const source = `package p

var v = 1 + 1

func plain() int { return 1 + 2 }

func labelled() {
l:
	for 1+3 > 0 {
		continue l
	}
}

func after() bool { return plain() == 1 && plain() == 2 }

func (s set) named(a, _ int, more ...string) (n int, err error) {
	b, err := 4+5, error(nil)
	return b, err
}

type set struct{}

func hidden(set set) bool { return 1+6 > 0 }
`
	of := func(old, with string) *mutant {
		at := strings.Index(source, old)
		return &mutant{text: []byte(source), start: at, end: at + len(old), with: with}
	}
	list := []*mutant{of("1 + 1", "1 - 1"), of("1 + 2", "1 - 2"), of("1+3", "1-3"), of("&&", "||"), of("== 2", "!= 2"), of("4+5", "4-5"), of("1+6", "1-6")}
	for i, m := range list {
		m.number = i + 1
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := withCopies(fset, file, slices.Clone(list))
	for _, want := range []string{
		"var v = 1 + 1\n",
		"func plain() int {\nswitch mutant__ {\ncase 2:\nreturn func() int { return 1 - 2 }()\n}\n return 1 + 2 }\n",
		"case 3:\nfunc() {\nl:\n\tfor 1-3 > 0 {\n\t\tcontinue l\n\t}\n}()\nreturn\n}\n\nl:\n",
		"case 4:\nreturn func() bool { return plain() == 1 || plain() == 2 }()\ncase 5:\nreturn func() bool { return plain() == 1 && plain() != 2 }()\n}\n",
		"case 6:\nreturn func(s set, a int, more ...string) (n int, err error) {\n\tb, err := 4-5, error(nil)\n\treturn b, err\n}(s, a, more...)\n}\n",
		"func hidden(set set) bool { return 1+6 > 0 }\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\ndoes not contain %q", got, want)
		}
	}
	for i, m := range list {
		if alone := i == 0 || i == 6; alone != (m.number == 0) {
			t.Errorf("mutant %d has number %d", i+1, m.number)
		}
	}
	if file, err = parser.ParseFile(fset, "p.go", got+"\nvar mutant__ int\n", 0); err == nil {
		_, err = new(types.Config).Check("p", fset, []*ast.File{file}, nil)
	}
	if err != nil {
		t.Error(err)
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
	o, err := r.test(t.Context(), stage{dir: sampleDir}, change{binary: script}, bound{time.Hour, 5 * time.Second})
	if !errors.Is(err, context.DeadlineExceeded) || string(o.text) != "begun\n" {
		t.Errorf("%v, after %q", err, o.text)
	}
}

func TestReportOfNothing(t *testing.T) {
	if text := (counts{Package: "wire"}).String(); !strings.Contains(text, "no mutant was tried") || strings.Contains(text, "%") {
		t.Errorf("the report is %q", text)
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
	if _, err := r.try(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "fail without a mutant") {
		t.Errorf("tests that fail by themselves: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.try(ended, nil); err == nil {
		t.Error("a run that was interrupted ends without an error")
	}
}

func TestEquivalentsMustMatch(t *testing.T) {
	_, mutants := sampleMutants(t)
	good := entry{mutants[1].File, "Steps", "steps++", "_ = steps", "why"}
	if err := (equivalents{good}).mark(sampleDir, mutants); err != nil || mutants[1].Reason != "why" {
		t.Errorf("%v, reason %q", err, mutants[1].Reason)
	}
	stale := good
	stale.Old = "steps += 1"
	if err := (equivalents{good, stale}).mark(sampleDir, mutants); err == nil || !strings.Contains(err.Error(), "steps += 1") {
		t.Errorf("an entry that matches nothing: %v", err)
	}
	if err := (equivalents{stale}).mark("scripts/mutants", mutants); err != nil {
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

// Each entry's function and line are still there. Only a run over the package finds its
// mutants, but it is the code that changes.
func TestEquivalentsAreCurrent(t *testing.T) {
	list, err := loadEquivalents("equivalents.json")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]map[string]string{} // by name: the text of each function
	for _, e := range list {
		functions := files[e.File]
		if functions == nil {
			functions = functionsOf(t, filepath.Join("../..", filepath.FromSlash(e.File)))
			files[e.File] = functions
		}
		text, ok := functions[e.Func]
		if e.Func != "" && !ok {
			t.Errorf("%s has no function %s", e.File, e.Func)
		}
		for _, part := range strings.Split(e.Old, " ... ") {
			if !strings.Contains(text, part) {
				t.Errorf("%s, %s: there is no %q", e.File, e.Func, part)
			}
		}
	}
}

// functionsOf returns the text of each function of a file on one line, and of the whole file as "".
func functionsOf(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	line := func(from, to token.Pos) string {
		return strings.Join(strings.Fields(string(text[fset.Position(from).Offset:fset.Position(to).Offset])), " ")
	}
	functions := map[string]string{"": line(file.FileStart, file.FileEnd)}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			functions[funcName(f)] = line(f.Pos(), f.End())
		}
	}
	return functions
}

func TestSampleIsDeterministic(t *testing.T) {
	draws := map[string]bool{}
	for _, seed := range []uint64{1, 1, 2} {
		_, mutants := sampleMutants(t)
		unfit := mutants[2]
		drawn := draw(mutants, func(m *mutant) bool { return m != unfit }, options{sample: 3, seed: seed})
		if len(drawn) != 3 || !slices.IsSortedFunc(drawn, byPlace) {
			t.Fatalf("seed %d: %v", seed, drawn)
		}
		if slices.Contains(drawn, unfit) {
			t.Error("what does not compile is drawn")
		}
		var names []string
		for _, m := range drawn {
			names = append(names, m.String())
		}
		draws[strings.Join(names, "\n")] = true
	}
	if len(draws) != 2 {
		t.Errorf("%d samples of two seeds", len(draws))
	}
	_, mutants := sampleMutants(t)
	unfit := mutants[2]
	if all := draw(mutants, func(m *mutant) bool { return m != unfit }, options{}); len(all) != len(mutants)-1 || slices.Contains(all, unfit) {
		t.Errorf("all that compile: %v", all)
	}
}

func TestChoose(t *testing.T) {
	for _, names := range []string{"", "wire", "./wire/,lut"} {
		if _, err := choose(names); err != nil {
			t.Error(err)
		}
	}
	if _, err := choose("wires"); err == nil || !strings.Contains(err.Error(), `"wires"`) {
		t.Errorf("an unknown package: %v", err)
	}
}
