// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// numberVariable names to a test process the mutant that it runs.
const numberVariable = "LIBRA_MUTANT"

// together writes an overlay with all mutants, so that each stage's tests are compiled and
// linked once, not once for each of them: that took most of a run's time. A function has a
// copy of its body for each of its mutants, and the process's environment chooses among
// them. Mutants outside functions, in functions with labels, which would be there twice,
// and those that do not parse have no number: they are compiled alone.
func (r *runner) together(mutants []*mutant) error {
	dir := filepath.Join(r.temp, "together")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	replace := map[string]string{}
	write := func(file, text string) error {
		to := filepath.Join(dir, filepath.Base(file))
		replace[filepath.Join(r.root, filepath.FromSlash(file))] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	byFile := map[string][]*mutant{}
	for i, m := range mutants {
		if _, err := parser.ParseFile(token.NewFileSet(), m.File, m.apply(), parser.SkipObjectResolution); err == nil {
			m.number = i + 1
			byFile[m.File] = append(byFile[m.File], m)
		}
	}
	name := ""
	for file, list := range byFile {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, list[0].text, parser.SkipObjectResolution)
		if err == nil {
			name = parsed.Name.Name
			err = write(file, withCopies(fset, parsed, list))
		}
		if err != nil {
			return err
		}
	}
	if name == "" {
		return nil
	}
	number := fmt.Sprintf("package %s\n\nimport (\n\tmutantos \"os\"\n\tmutantnumber \"strconv\"\n)\n\nvar mutant__, _ = mutantnumber.Atoi(mutantos.Getenv(%q))\n", name, numberVariable)
	if err := write(r.target.dir+"/mutant_number.go", number); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	r.overlay = filepath.Join(dir, "overlay.json")
	return errors.Join(err, os.WriteFile(r.overlay, text, 0o600))
}

// alone has each mutant compiled by itself.
func (r *runner) alone(mutants []*mutant) {
	r.overlay = ""
	for _, m := range mutants {
		m.number = 0
	}
}

// withCopies returns the text of a file with its mutants, and takes the number from those
// that it leaves out.
func withCopies(fset *token.FileSet, file *ast.File, mutants []*mutant) string {
	original := mutants[0].text
	var text strings.Builder
	end, left := 0, mutants
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || hasLabel(f.Body) {
			continue
		}
		from, to := fset.Position(f.Body.Pos()).Offset, fset.Position(f.Body.End()).Offset
		var own []*mutant
		left = slices.DeleteFunc(left, func(m *mutant) bool {
			inside := from < m.start && m.end < to
			if inside {
				own = append(own, m)
			}
			return inside
		})
		if len(own) == 0 {
			continue
		}
		text.Write(original[end:from])
		text.WriteString("{\nswitch mutant__ {\n")
		for _, m := range own {
			fmt.Fprintf(&text, "case %d:\n%s%s%s\n", m.number, original[from:m.start], m.with, original[m.end:to])
		}
		fmt.Fprintf(&text, "default:\n%s\n}\n}", original[from:to])
		end = to
	}
	text.Write(original[end:])
	for _, m := range left {
		m.number = 0
	}
	return text.String()
}

func hasLabel(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		_, label := n.(*ast.LabeledStmt)
		found = found || label
		return !found
	})
	return found
}
