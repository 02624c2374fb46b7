// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The sample is a package of a module of its own.
const (
	sampleModule = "testdata/module"
	sampleDir    = "sample"
)

// libra is the root of Libra's module.
const libra = "../.."

func loadSample(t *testing.T) (string, *goPackage) {
	t.Helper()
	root, err := filepath.Abs(sampleModule)
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
	mutants := p.syntaxMutants("sample.go")
	slices.SortFunc(mutants, byPlace)
	return root, mutants
}

func TestSyntaxMutants(t *testing.T) {
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
	for _, m := range p.syntaxMutants("same.go") {
		if m.Func != "InTurn" {
			t.Errorf("mutant %v", m)
		}
	}
	if m := p.syntaxMutants("same.go"); len(m) != 1 || m[0].New != "return errors.Join(second(), first())" {
		t.Errorf("mutants %v of errors that are made one after the other", m)
	}
}
