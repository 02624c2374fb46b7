// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A goPackage is the syntax, the types and the text of a package.
type goPackage struct {
	root, dir string // of the module; of the package within it, with slashes
	path      string // import path
	fset      *token.FileSet
	names     []string // of the files that are built here and not generated
	files     map[string]*ast.File
	text      map[string][]byte
	code      map[string]string // the text without comments, at the same offsets
	all       []string          // names of all files that are built here
	info      *types.Info
	imports   types.Importer
}

// listedPackage is what go list prints of a package.
type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
	DepOnly                 bool
	Error                   *struct{ Err string }
}

// load parses the package in dir and checks its types against the export data of
// its imports.
func load(ctx context.Context, root, dir string) (*goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,CgoFiles,DepOnly,Error", "./"+dir)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list ./%s: %w", dir, err)
	}
	p := &goPackage{
		root: root, dir: dir, fset: token.NewFileSet(),
		files: map[string]*ast.File{}, text: map[string][]byte{}, code: map[string]string{},
	}
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listedPackage
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list ./%s: %w", dir, err)
		}
		if l.Error != nil {
			return nil, fmt.Errorf("go list ./%s: %s", dir, l.Error.Err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			p.path, p.all = l.ImportPath, slices.Concat(l.GoFiles, l.CgoFiles)
		}
	}
	p.imports = importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	for _, name := range p.all {
		text, err := os.ReadFile(filepath.Join(root, dir, name))
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(p.fset, name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		p.files[name], p.text[name], p.code[name] = file, text, withoutComments(string(text))
		if !ast.IsGenerated(file) {
			p.names = append(p.names, name)
		}
	}
	p.info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Uses:  map[*ast.Ident]types.Object{},
	}
	if err := p.checkTypes(p.files, p.info); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return p, nil
}

// checkTypes checks the types of the package as these files have it.
func (p *goPackage) checkTypes(files map[string]*ast.File, info *types.Info) error {
	ordered := make([]*ast.File, 0, len(files))
	for _, name := range p.all {
		ordered = append(ordered, files[name])
	}
	c := types.Config{Importer: p.imports}
	_, err := c.Check(p.path, p.fset, ordered, info)
	return err
}

// mutantCompiles reports whether the package passes the type checker with the mutant.
func (p *goPackage) mutantCompiles(m *mutant) bool {
	name := filepath.Base(m.File)
	file, err := parser.ParseFile(p.fset, name, m.mutatedFile(), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := map[string]*ast.File{}
	for n, f := range p.files {
		files[n] = f
	}
	files[name] = file
	return p.checkTypes(files, nil) == nil
}

// findMutants lists the mutants of the package, in the order of the text and each once: two
// finders may make the same change. Some do not compile.
func (p *goPackage) findMutants(ctx context.Context) ([]*mutant, error) {
	mutants, err := p.operatorMutants(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range p.names {
		mutants = append(mutants, p.syntaxMutants(name)...)
	}
	slices.SortStableFunc(mutants, byPlace)
	return slices.CompactFunc(mutants, func(a, b *mutant) bool {
		return a.File == b.File && a.start == b.start && a.end == b.end && a.with == b.with
	}), nil
}
