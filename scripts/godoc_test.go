// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// public reports whether a package is for other programs to import.
func public(dir string) bool {
	part := strings.Split(dir, "/")
	return !slices.Contains(part, "internal") && !slices.Contains([]string{"bench", "clients", "cmd", "scripts", "study"}, part[0])
}

// TestPackagesReadAsPages looks at the documentation of every package that others can
// import: it tells units, errors, ownership and which goroutines may call, and it has
// an example for the whole package that tests run.
func TestPackagesReadAsPages(t *testing.T) {
	pages := 0
	for dir := range imports(t) {
		if !public(dir) {
			continue
		}
		pages++
		sources, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		var text string
		var tested []*ast.File
		for _, name := range sources {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "_test.go") {
				tested = append(tested, file)
			} else {
				text += file.Doc.Text()
			}
		}
		for _, subject := range []string{"units?", "errors?", "(owns?|ownership|belongs?|memory|messages)", "(goroutines?|concurrent)"} {
			if !regexp.MustCompile(`(?i)\b` + subject + `\b`).MatchString(text) {
				t.Errorf("the documentation of %s has nothing about %s", dir, subject)
			}
		}
		// Tests of links need a testing.T, so linktest's example is a test; that of
		// the messages of control is control's.
		if dir == "link/linktest" || dir == "control/controlpb" {
			continue
		}
		if examples := doc.Examples(tested...); !slices.ContainsFunc(examples, func(e *doc.Example) bool {
			return (e.Name == "" || dir == "afxdp") && e.Output != "" // afxdp has one for each type
		}) {
			t.Errorf("%s has no example that runs", dir)
		}
	}
	if pages < 16 {
		t.Errorf("only %d packages were found", pages)
	}
}

// TestExportedNamesAreFew counts functions, types, methods, variables and constants of the packages
// that a user of the whole system reads first: each is to be taken in at one sitting. Methods that a type
// has from an embedded unexported one count, as its page lists them.
func TestExportedNamesAreFew(t *testing.T) {
	for _, dir := range []string{"transport", "packer", "link"} {
		names := map[string]bool{} // once, though platforms have variants
		add := func(of string, consts, vars []*doc.Value, funcs []*doc.Func) {
			for _, v := range slices.Concat(consts, vars) {
				for _, name := range v.Names {
					names[name] = ast.IsExported(name)
				}
			}
			for _, f := range funcs {
				names[of+f.Name] = true
			}
		}
		page := page(t, dir)
		add("", page.Consts, page.Vars, page.Funcs)
		for _, typ := range page.Types {
			names[typ.Name] = true
			add("", typ.Consts, typ.Vars, typ.Funcs)
			add(typ.Name+".", nil, nil, typ.Methods)
		}
		maps.DeleteFunc(names, func(_ string, exported bool) bool { return !exported })
		if n := len(names); n < 10 || n > 80 {
			t.Errorf("%s exports %d names, want at most 80: %v", dir, n, slices.Sorted(maps.Keys(names)))
		}
	}
}

// page is the documentation of a package, of all platforms.
func page(t *testing.T, dir string) *doc.Package {
	sources, err := filepath.Glob("../" + dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range sources {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, file)
		}
	}
	p, err := doc.NewFromFiles(fset, files, dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exported returns the names that a declaration exports, those of methods with their types.
func exported(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			receiver := d.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			name = types.ExprString(receiver) + "." + name
		}
		names = append(names, name)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names = append(names, id.Name)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(strings.Split(name, "."), func(part string) bool { return !ast.IsExported(part) })
	})
}

// TestSignaturesNameNoInternalTypes looks at what packages that others can import export: an outsider has no
// value of a type of an internal package.
func TestSignaturesNameNoInternalTypes(t *testing.T) {
	for dir := range imports(t) {
		if !public(dir) {
			continue
		}
		sources, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range sources {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			internal := map[string]bool{} // names of packages
			for _, i := range file.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				if slices.Contains(strings.Split(path, "/"), "internal") {
					internal[filepath.Base(path)] = true
				}
			}
			for _, d := range file.Decls {
				for _, part := range signatures(d) {
					ast.Inspect(part, func(n ast.Node) bool {
						if s, ok := n.(*ast.SelectorExpr); ok {
							if id, ok := s.X.(*ast.Ident); ok && internal[id.Name] {
								t.Errorf("%v: %s.%s in what the package exports", fset.Position(s.Pos()), id.Name, s.Sel.Name)
							}
						}
						return true
					})
				}
			}
		}
	}
}

// signatures are the parts of an exported declaration that its users see.
func signatures(d ast.Decl) (parts []ast.Node) {
	if len(exported(d)) == 0 {
		return nil
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		return []ast.Node{d.Type}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if !spec.Name.IsExported() {
					continue
				}
				fields := &ast.FieldList{}
				switch of := spec.Type.(type) {
				case *ast.StructType:
					fields = of.Fields
				case *ast.InterfaceType:
					fields = of.Methods
				default:
					parts = append(parts, of)
				}
				for _, f := range fields.List {
					if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
						parts = append(parts, f.Type)
					}
				}
			case *ast.ValueSpec:
				if spec.Type != nil {
					parts = append(parts, spec.Type)
				}
			}
		}
	}
	return parts
}
