// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// equivalentsFile lists mutants that no test can kill, because the program does
// the same with them, each with the reason.
const equivalentsFile = "scripts/mutants/equivalents.json"

// An entry of the list names a mutant by its function and by the line before
// and after the change, so that it outlives edits elsewhere in the file.
type entry struct {
	File   string `json:"file"`
	Func   string `json:"func"`
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

// mark gives the mutants of a package that are on the list their reasons. An
// entry that matches none is an error: the code has changed since.
func (list equivalents) mark(dir string, mutants []*mutant) error {
	type key struct{ file, fn, before, after string }
	byKey := map[key][]*mutant{}
	for _, m := range mutants {
		k := key{m.File, m.Func, m.Old, m.New}
		byKey[k] = append(byKey[k], m)
	}
	var errs []error
	for _, e := range list {
		rest, ok := strings.CutPrefix(e.File, dir+"/")
		if !ok || strings.Contains(rest, "/") {
			continue
		}
		matching := byKey[key{e.File, e.Func, e.Old, e.New}]
		if len(matching) == 0 {
			errs = append(errs, fmt.Errorf("%s: no mutant of %s in %s makes %q of %q", equivalentsFile, e.File, e.Func, e.New, e.Old))
		}
		for _, m := range matching {
			m.Reason = e.Reason
		}
	}
	return errors.Join(errs...)
}
