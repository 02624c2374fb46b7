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

// xdpFile lists the mutants of the XDP program: there is no maintained tool for C that
// knows BPF, where the verifier refuses most random changes or they change
// nothing. Each entry of the list is one change that a person found worth a test.
const xdpFile = "tools/mutants/xdp.json"

// xdpObject is the file of the compiled program. The tests of package bpf load it in place of
// the one that is built in (their flag -object).
const xdpObject = "aggregate_bpfel.o"

// An xdpEntry replaces code that occurs once in a C file of the program. Comments and layout of the
// old code do not matter.
type xdpEntry struct {
	Name       string `json:"name"`
	File       string `json:"file"`
	Old        string `json:"old"`
	New        string `json:"new"`
	Equivalent string `json:"equivalent,omitempty"` // why the program does the same with the change
}

// xdpMutants reads the list. An entry whose code does not occur exactly once is
// an error: the program has changed since.
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
		m, err := e.locateMutant(root)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q: %w", xdpFile, e.Name, err))
			continue
		}
		mutants = append(mutants, m)
	}
	slices.SortStableFunc(mutants, byPlace)
	return mutants, errors.Join(errs...)
}

// locateMutant finds the place of an entry.
func (e xdpEntry) locateMutant(root string) (*mutant, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
	if err != nil {
		return nil, err
	}
	code := split(string(source))
	found := occurrences(code, split(e.Old))
	switch {
	case e.Name == "":
		return nil, errors.New("no name")
	case len(found) != 1:
		return nil, fmt.Errorf("%q occurs %d times in %s", e.Old, len(found), e.File)
	case join(split(e.Old)) == join(split(e.New)):
		return nil, errors.New("it changes nothing")
	}
	start, end := code[found[0].from].start, code[found[0].to-1].end
	before := string(source[:start])
	return &mutant{
		File: e.File, Line: 1 + strings.Count(before, "\n"), Column: start - strings.LastIndexByte(before, '\n'),
		Kind: e.Name, Old: oneLine(e.Old), New: oneLine(e.New), Reason: e.Equivalent,
		text: source, start: start, end: end, with: strings.TrimSpace(e.New),
	}, nil
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
		return errors.New("bpf/generate.go compiles aggregate.c in a way that this program does not know")
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
				text = m.mutatedFile()
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(source, filepath.Base(name)), text, 0o600)); err != nil {
				return err
			}
		}
	}
	args := slices.Concat([]string{"tool", "-modfile=" + filepath.Join(root, "tools", "go.mod")},
		splitWords(string(found[1])+"bpfel"+string(found[2])),
		[]string{"-output-dir", dir, "-go-package", "bpf", "aggregate", filepath.Join(source, "aggregate.c")})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	return compile(cmd)
}

// splitWords splits a go:generate line into words. A word in quotes may contain spaces.
func splitWords(line string) []string {
	var words []string
	for _, f := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(f, `"`))
	}
	return words
}
