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

// numberVariable is the environment variable that selects the mutant in a test process.
const numberVariable = "LIBRA_MUTANT"

// combineMutants writes an overlay that contains all mutants, so that each stage's tests are
// compiled and linked once, and not once for each mutant, which would take most of a run's time. A
// function gets a copy of its body for each of its mutants; the process's environment selects the
// copy that runs, or none. Mutants outside functions, in functions whose copies would not compile
// inside them, and those that do not parse get no number: they are compiled alone.
func (r *runner) combineMutants(mutants []*mutant) error {
	dir := filepath.Join(r.temp, "combined")
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
		if _, err := parser.ParseFile(token.NewFileSet(), m.File, m.mutatedFile(), parser.SkipObjectResolution); err == nil {
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
	if err := write(r.target.dir+"/mutant_number.go", fmt.Sprintf(numberFile, name, numberVariable)); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	r.overlay = filepath.Join(dir, "overlay.json")
	return errors.Join(err, os.WriteFile(r.overlay, text, 0o600))
}

// numberFile is added to the package, with its name and the variable's.
const numberFile = `package %s

import (
	mutantos "os"
	mutantnumber "strconv"
)

var mutant__, _ = mutantnumber.Atoi(mutantos.Getenv(%q))
`

// separateMutants makes each mutant be compiled alone.
func (r *runner) separateMutants(mutants []*mutant) {
	r.overlay = ""
	for _, m := range mutants {
		m.number = 0
	}
}

// withCopies returns the text of a file with its mutants, and clears the number of those that it
// omits.
func withCopies(fset *token.FileSet, file *ast.File, mutants []*mutant) string {
	original := mutants[0].text
	var text strings.Builder
	end, left := 0, mutants
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		begin, call, ok := literal(fset, original, f)
		if !ok {
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
			fmt.Fprintf(&text, "case %d:\n%s%s%s%s%s\n",
				m.number, begin, original[from:m.start], m.with, original[m.end:to], call)
		}
		text.WriteString("}\n")
		end = from + 1
	}
	text.Write(original[end:])
	for _, m := range left {
		m.number = 0
	}
	return text.String()
}

// literal returns the code before and after the body of a function's copy, which makes it a
// function literal that is called at once. The literal has parameters and results of the same
// names: a := at the top of the body assigns to them, but would declare new variables in a block.
// It reports false if a parameter hides a name that their types need.
func literal(fset *token.FileSet, original []byte, f *ast.FuncDecl) (begin, call string, ok bool) {
	source := func(n ast.Node) string {
		return string(original[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])
	}
	fields := f.Type.Params.List
	if f.Recv != nil {
		fields = slices.Concat(f.Recv.List, fields)
	}
	var parameters, arguments []string
	hidden := map[string]bool{}
	for _, field := range fields {
		for _, name := range field.Names {
			if name.Name == "_" {
				continue
			}
			hidden[name.Name] = true
			parameters = append(parameters, name.Name+" "+source(field.Type))
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				arguments = append(arguments, name.Name+"...")
			} else {
				arguments = append(arguments, name.Name)
			}
		}
	}
	begin, call = "func("+strings.Join(parameters, ", ")+")", "("+strings.Join(arguments, ", ")+")"
	if results := f.Type.Results; results == nil {
		call += "\nreturn"
	} else {
		begin = "return " + begin + " " + source(results)
		fields = slices.Concat(fields, results.List)
		for _, field := range results.List {
			for _, name := range field.Names {
				hidden[name.Name] = true
			}
		}
	}
	ok = true
	for _, field := range fields {
		ast.Inspect(field.Type, func(n ast.Node) bool {
			name, isName := n.(*ast.Ident)
			ok = ok && !(isName && hidden[name.Name])
			return ok
		})
	}
	return begin + " ", call, ok
}
