// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The XDP program has a list of mutations: there is no maintained tool for C that
// knows BPF, where most random changes are refused by the verifier or change
// nothing. Each entry of the list is one change that a person found worth a test.
const xdpFile = "scripts/mutants/xdp.json"

// xdpObject is what the compiler makes of the program. The tests of package bpf
// load it in place of what is built in (their flag -object).
const xdpObject = "aggregate_bpfel.o"

// An xdpEntry replaces text that occurs once in a C file of the program.
type xdpEntry struct {
	Name       string `json:"name"`
	File       string `json:"file"`
	Old        string `json:"old"`
	New        string `json:"new"`
	Equivalent string `json:"equivalent,omitempty"` // why the program does the same with the change
}

// xdpMutants reads the list. An entry whose text does not occur exactly once is
// an error: the code has changed since.
func xdpMutants(root string) ([]*mutant, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(xdpFile)))
	if err != nil {
		return nil, err
	}
	var list []xdpEntry
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", xdpFile, err)
	}
	var mutants []*mutant
	var errs []error
	for _, e := range list {
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if n := strings.Count(string(source), e.Old); n != 1 || e.Old == e.New || e.Name == "" {
			errs = append(errs, fmt.Errorf("%s: %q: its text occurs %d times in %s: %q", xdpFile, e.Name, n, e.File, e.Old))
			continue
		}
		start := strings.Index(string(source), e.Old)
		mutants = append(mutants, &mutant{
			File: e.File, Line: 1 + strings.Count(string(source[:start]), "\n"), Column: start - strings.LastIndexByte(string(source[:start]), '\n'),
			Kind: e.Name, Old: squeeze(e.Old), New: squeeze(e.New), Reason: e.Equivalent,
			text: source, start: start, end: start + len(e.Old), with: e.New,
		})
	}
	slices.SortStableFunc(mutants, byPlace)
	return mutants, errors.Join(errs...)
}

// generator is the go:generate line that compiles the program.
var generator = regexp.MustCompile(`(?m)^//go:generate go tool -modfile=../tools/go.mod (bpf2go .*-target )\S+( .*) aggregate aggregate\.c$`)

// compileXDP compiles the program with a mutant in dir, as go generate does.
func compileXDP(ctx context.Context, root, dir string, m *mutant) error {
	lines, err := os.ReadFile(filepath.Join(root, "bpf", "generate.go"))
	if err != nil {
		return err
	}
	found := generator.FindSubmatch(lines)
	if found == nil {
		return errors.New("bpf/generate.go does not compile aggregate.c in the way that this program knows")
	}
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o700); err != nil {
		return err
	}
	for _, pattern := range []string{"*.c", "*.h"} {
		names, err := filepath.Glob(filepath.Join(root, "bpf", pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err == nil && filepath.Base(name) == filepath.Base(m.File) {
				text = m.apply()
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(source, filepath.Base(name)), text, 0o600)); err != nil {
				return err
			}
		}
	}
	args := slices.Concat([]string{"tool", "-modfile=" + filepath.Join(root, "tools", "go.mod")},
		fields(string(found[1])+"bpfel"+string(found[2])),
		[]string{"-output-dir", dir, "-go-package", "bpf", "aggregate", filepath.Join(source, "aggregate.c")})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	return compile(cmd)
}

// fields splits a go:generate line into words, of which those in quotes may
// have spaces.
func fields(line string) []string {
	var words []string
	for _, f := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(f, `"`))
	}
	return words
}
