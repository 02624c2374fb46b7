// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unstable are the packages, with those in their folders, that other programs can import but should
// not: parts of the command, and what only tests import. Each says so.
var unstable = []string{
	"telemetry", "agent/agentclient", "agent/agentproto", "aggregator/conformance", "aggregator/vectors", "bench", "clients",
	"cluster", "cmd", "link/capture", "link/fault", "p4/program", "sched", "scripts", "simulation", "study", "train", "wire/golden",
}

// public reports whether a package is for other programs to import.
func public(dir string) bool {
	return !slices.Contains(strings.Split(dir, "/"), "internal") &&
		!slices.ContainsFunc(unstable, func(u string) bool { return dir == u || strings.HasPrefix(dir, u+"/") })
}

// TestUnstablePackagesSaySo looks for the warning in the documentation of packages that other
// programs can import and should not.
func TestUnstablePackagesSaySo(t *testing.T) {
	for dir := range imports(t) {
		if top, _, _ := strings.Cut(dir, "/"); public(dir) || slices.Contains([]string{"bench", "clients", "cmd", "internal", "scripts", "study"}, top) {
			continue
		}
		if text := page(t, dir).Doc; !strings.Contains(text, "not a stable interface") {
			t.Errorf("the documentation of %s does not say that it is not a stable interface", dir)
		}
	}
}

// TestPackagesReadAsPages looks at the documentation of every package that others can
// import: it tells units, errors, ownership and which goroutines may call, and it has
// an example for the whole package that tests run.
func TestPackagesReadAsPages(t *testing.T) {
	t.Parallel()
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
// that a user of the whole system reads first: each is to be taken in at one sitting. Methods that
// a type has from an embedded unexported one count, as its page lists them.
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
		if n := len(names); n < 10 || n > 81 {
			t.Errorf("%s exports %d names, want at most 81: %v", dir, n, slices.Sorted(maps.Keys(names)))
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

// TestSignaturesNameNoInternalTypes looks at what packages that others can import export: an
// outsider has no value of a type of an internal package. It sees the types as the compiler does:
// renamed imports, variables without a written type, aliases, and methods and fields of embedded
// types included.
func TestSignaturesNameNoInternalTypes(t *testing.T) {
	t.Parallel()
	var dirs []string
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for dir := range imports(t) {
		if public(dir) {
			dirs = append(dirs, dir)
			args = append(args, module+dir)
		}
	}
	if len(dirs) < 16 {
		t.Errorf("only %d packages were found", len(dirs))
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	compiled := map[string]string{} // file of export data by package
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[path] = file
	}
	read := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	for _, dir := range dirs {
		pkg, err := read.Import(module + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range internalTypes(pkg) {
			t.Errorf("%s: %s", dir, w)
		}
	}
}

// internalTypes names the exported objects of a package through which its users get at types of
// internal packages.
func internalTypes(pkg *types.Package) (wrong []string) {
	seen := map[types.Type]bool{}
	var visit func(where string, t types.Type)
	visit = func(where string, t types.Type) {
		if t == nil || seen[t] {
			return
		}
		seen[t] = true
		tuple := func(vars *types.Tuple) {
			for v := range vars.Variables() {
				visit(where, v.Type())
			}
		}
		named := func(of *types.TypeName, args *types.TypeList) {
			for arg := range args.Types() {
				visit(where, arg)
			}
			if of.Pkg() != nil && slices.Contains(strings.Split(of.Pkg().Path(), "/"), "internal") && strings.HasPrefix(of.Pkg().Path(), module) {
				wrong = append(wrong, where+" is or has a "+of.Pkg().Name()+"."+of.Name())
			}
		}
		switch t := t.(type) {
		case *types.Alias:
			named(t.Obj(), t.TypeArgs())
			visit(where, t.Rhs())
		case *types.Named:
			named(t.Obj(), t.TypeArgs())
			if t.Obj().Pkg() != pkg {
				return
			}
			for p := range t.TypeParams().TypeParams() {
				visit(where, p.Constraint())
			}
			visit(where, t.Underlying())
			for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
				if m.Obj().Exported() {
					visit(where+"."+m.Obj().Name(), m.Type())
				}
			}
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() || f.Embedded() {
					visit(where+"."+f.Name(), f.Type())
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				visit(where+"."+m.Name(), m.Type())
			}
			for e := range t.EmbeddedTypes() {
				visit(where, e)
			}
		case *types.Union:
			for term := range t.Terms() {
				visit(where, term.Type())
			}
		case *types.Signature:
			for p := range t.TypeParams().TypeParams() {
				visit(where, p.Constraint())
			}
			tuple(t.Params())
			tuple(t.Results())
		case *types.Map:
			visit(where, t.Key())
			visit(where, t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			visit(where, t.Elem())
		}
	}
	for _, name := range pkg.Scope().Names() {
		if o := pkg.Scope().Lookup(name); o.Exported() {
			visit(name, o.Type())
		}
	}
	return wrong
}

// TestInternalTypesAreFound exports types of an internal package in each way.
func TestInternalTypesAreFound(t *testing.T) {
	const secret = "package secret; type T struct{}; func (T) Twice() T { return T{} }"
	for source, want := range map[string]string{
		"var V = s.T{}":                                                  "V",
		"func F(...s.T) {}":                                              "F",
		"func F() (map[string][]*s.T, error)":                            "F",
		"type A = s.T":                                                   "A",
		"type inner = s.T; func F(inner) {}":                             "F",
		"type G[P interface{ s.T | int }] int":                           "G",
		"func F[P interface{ s.T }](P) {}":                               "F",
		"type I interface{ M(chan s.T) }":                                "I.M",
		"type S struct{ Field func(s.T) }":                               "S.Field",
		"type S struct{ s.T }":                                           "S.T",
		"type in struct{ Field s.T }; type S struct{ in }":               "S.in.Field",
		"type in struct{}; func (*in) M(s.T) {}; type S struct{ in }":    "S.in.M",
		"type in struct{}; func (in) M() s.T { return s.T{} }; var V in": "V.M",
		"type S struct{ field s.T }; func (S) m(s.T) {}; func f(s.T) {}": "",
	} {
		check := func(path, text string, from types.Importer) *types.Package {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, "", text, 0)
			if err != nil {
				t.Fatalf("%s: %v", source, err)
			}
			pkg, _ := (&types.Config{Importer: from, Error: func(error) {}}).Check(path, fset, []*ast.File{file}, nil)
			return pkg
		}
		inner := check(module+"internal/secret", secret, nil)
		pkg := check(module+"open", `package open; import s "`+inner.Path()+`"; `+source, only{inner})
		found := internalTypes(pkg)
		if want == "" && found != nil || want != "" && !slices.Contains(found, want+" is or has a secret.T") {
			t.Errorf("%s: found %q, want %q", source, found, want)
		}
	}
}

// only imports one package.
type only struct{ *types.Package }

func (o only) Import(string) (*types.Package, error) { return o.Package, nil }

// TestPagesNameNoInternals looks at the comments of what packages that others can import export: an
// outsider cannot look up what they name in an internal package.
func TestPagesNameNoInternals(t *testing.T) {
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
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			var internal []string // names of packages
			for _, i := range file.Imports {
				if path, _ := strconv.Unquote(i.Path.Value); slices.Contains(strings.Split(path, "/"), "internal") {
					internal = append(internal, filepath.Base(path))
				}
			}
			if internal == nil {
				continue
			}
			names := regexp.MustCompile(`\b(` + strings.Join(internal, "|") + `)\.[A-Z]\w*`)
			for _, d := range file.Decls {
				if len(exported(d)) == 0 {
					continue
				}
				if f, ok := d.(*ast.FuncDecl); ok {
					f.Body = nil
				}
				ast.Inspect(d, func(n ast.Node) bool {
					if c, ok := n.(*ast.CommentGroup); ok {
						if found := names.FindString(c.Text()); found != "" {
							t.Errorf("%v: the comment names %s", fset.Position(c.Pos()), found)
						}
					}
					return true
				})
			}
		}
	}
}
