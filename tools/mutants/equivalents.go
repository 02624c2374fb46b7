// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
)

// equivalentsFile lists mutants that no test can kill, because the program does
// the same with them, each with the reason.
const equivalentsFile = "tools/mutants/equivalents.json"

// An entry names a mutant by its function and by the code before and after the change: the line
// from the report, or as much of it as occurs once in the function. Comments and layout do not
// matter, and … in the old code stands for anything up to the closing bracket.
type entry struct {
	File   string `json:"file"`
	Func   string `json:"func"` // empty: the code is outside functions
	Old    string `json:"old"`
	New    string `json:"new"`
	Reason string `json:"reason"`
}

type equivalents []entry

func loadEquivalents(name string) (equivalents, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list equivalents
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, e := range list {
		if e.Reason == "" {
			return nil, fmt.Errorf("%s: %s, %s: no reason", name, e.File, e.New)
		}
	}
	return list, nil
}

// markMutants gives the mutants of a package that are on the list their reasons. An
// entry that matches none is an error: the code has changed since.
func (list equivalents) markMutants(root, dir string, mutants []*mutant) error {
	var errs []error
	for _, e := range list {
		if path.Dir(e.File) != dir {
			continue
		}
		p, err := e.locatePlace(root)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		matched := false
		for _, m := range mutants {
			if m.File == e.File && p.start <= m.start && m.end <= p.end && p.changed == m.changedLexemes(p.start, p.end) {
				m.Reason, matched = e.Reason, true
			}
		}
		if !matched {
			errs = append(errs, fmt.Errorf("%s: no mutant of %s in %s makes %q of %q",
				equivalentsFile, e.File, e.Func, e.New, e.Old))
		}
	}
	return errors.Join(errs...)
}

// A place is the function, or the file, that an entry changes: its offsets in the text, and its
// lexemes with the change.
type place struct {
	start, end int
	changed    string
}

// locatePlace finds the place of an entry, which must exist exactly once.
func (e entry) locatePlace(root string) (place, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
	if err != nil {
		return place{}, fmt.Errorf("%s: %w", equivalentsFile, err)
	}
	p, err := function(text, e.Func)
	if err != nil {
		return place{}, fmt.Errorf("%s: %s: %w", equivalentsFile, e.File, err)
	}
	code := splitGo(string(text[p.start:p.end]))
	found := occurrences(code, splitGo(e.Old))
	if len(found) != 1 {
		return place{}, fmt.Errorf("%s: %q occurs %d times in %s of %s", equivalentsFile, e.Old, len(found), e.Func, e.File)
	}
	at := found[0]
	p.changed = join(code[:at.from]) + join(splitGo(e.New)) + join(code[at.to:])
	if p.changed == join(code) {
		return place{}, fmt.Errorf("%s: %q in %s of %s changes nothing", equivalentsFile, e.New, e.Func, e.File)
	}
	return p, nil
}

// function finds the one function of this name, or the whole file if the name is empty.
func function(text []byte, name string) (place, error) {
	if name == "" {
		return place{end: len(text)}, nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return place{}, err
	}
	var found []place
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && funcName(f) == name {
			found = append(found, place{start: fset.Position(f.Pos()).Offset, end: fset.Position(f.End()).Offset})
		}
	}
	if len(found) != 1 {
		return place{}, fmt.Errorf("it has %d functions %s", len(found), name)
	}
	return found[0], nil
}
