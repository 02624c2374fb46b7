// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// step is a function of a walk in docs/architecture.md, e.g. transport.Worker.Push.
type step struct{ pkg, receiver, name string }

// folders are those of packages that are not at the top.
var folders = map[string]string{"endpoint": "transport/endpoint"}

// item is a numbered item of a walk: its function, and others that its text names.
type item struct {
	step
	others []step
}

// walks are the numbered lists of the section that goes through the data path. The
// first word in code of each item names the function.
func walks(t *testing.T) map[string][]item {
	t.Helper()
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## The data path, function by function\n")
	section, _, ok := strings.Cut(section, "\n## ")
	if !ok {
		t.Fatal("docs/architecture.md does not go through the data path")
	}
	function := regexp.MustCompile("`([a-z0-9]+)\\.(?:([A-Za-z]+)\\.)?([A-Za-z]+)`")
	number := regexp.MustCompile(`^[0-9]+\. `)
	found := map[string][]item{}
	title := ""
	for line := range strings.Lines(section) {
		if rest, ok := strings.CutPrefix(line, "### "); ok {
			title = strings.TrimSpace(rest)
			continue
		}
		begins := number.MatchString(line)
		if begins {
			found[title] = append(found[title], item{})
			if !strings.HasPrefix(number.ReplaceAllString(line, ""), "`") {
				t.Errorf("%s: no function in %q", title, line)
			}
		}
		for _, m := range function.FindAllStringSubmatch(line, -1) {
			s, items := step{m[1], m[2], m[3]}, found[title]
			switch last := len(items) - 1; {
			case last < 0: // in the text before the lists
			case items[last].step == step{}:
				items[last].step = s
			default:
				items[last].others = append(items[last].others, s)
			}
		}
	}
	if len(found) != 3 {
		t.Fatalf("docs/architecture.md has %d walks, want 3", len(found))
	}
	return found
}

// calls lists for each function of a package the names of what it calls, or passes to others to
// call.
func calls(t *testing.T, pkg string) map[step][]string {
	t.Helper()
	names, err := filepath.Glob("../" + cmp.Or(folders[pkg], pkg) + "/*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: no files, %v", pkg, err)
	}
	found := map[step][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			s := step{pkg: pkg, name: f.Name.Name}
			if f.Recv != nil {
				switch r := f.Recv.List[0].Type.(type) {
				case *ast.Ident:
					s.receiver = r.Name
				case *ast.StarExpr:
					s.receiver = r.X.(*ast.Ident).Name
				}
			}
			called := []string{}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					switch fn := c.Fun.(type) {
					case *ast.Ident:
						called = append(called, fn.Name)
					case *ast.SelectorExpr:
						called = append(called, fn.Sel.Name)
					}
					for _, a := range c.Args {
						if passed, ok := a.(*ast.SelectorExpr); ok {
							called = append(called, passed.Sel.Name)
						}
					}
				}
				return true
			})
			found[s] = called
		}
	}
	return found
}

// TestWalksGoDown holds the walks against the code: every function exists, each is
// called by one that was named before it or with it, none calls one that comes before it
// in the walk, and a walk has at most 15 steps.
func TestWalksGoDown(t *testing.T) {
	packages := map[string]map[step][]string{}
	called := func(title string, i int, s step) []string {
		if packages[s.pkg] == nil {
			packages[s.pkg] = calls(t, s.pkg)
		}
		names, ok := packages[s.pkg][s]
		if !ok {
			t.Errorf("%s, step %d: there is no function %v", title, i+1, s)
		}
		return names
	}
	for title, walk := range walks(t) {
		if len(walk) > 15 {
			t.Errorf("%s: %d steps", title, len(walk))
		}
		var callees []step // package and name of all that was called so far
		for i, s := range walk {
			names := called(title, i, s.step)
			for _, before := range walk[:i] {
				if before.name != s.name && slices.Contains(names, before.name) {
					t.Errorf("%s, step %d: %v calls %v, which comes before it", title, i+1, s.step, before.step)
				}
			}
			note := func(by step, names []string) {
				for _, name := range names {
					callees = append(callees, step{pkg: by.pkg, name: name})
				}
			}
			for _, other := range s.others {
				note(other, called(title, i, other))
			}
			if i > 0 && !slices.ContainsFunc(callees, func(c step) bool {
				return c.name == s.name && (ast.IsExported(s.name) || c.pkg == s.pkg)
			}) {
				t.Errorf("%s, step %d: nothing that was named calls %v", title, i+1, s.step)
			}
			note(s.step, names)
		}
	}
}

// TestLoopsAreEnteredOnce: only the goroutine's own function calls the event loop, and only those
// who make an endpoint start its goroutine.
func TestLoopsAreEnteredOnce(t *testing.T) {
	entries := map[string][]string{
		"turn": {"main"}, "main": {"NewWorker"},
		"Serve": {"NewServer", "NewAggregatorServer"}, "Start": {"NewWorker", "NewServer", "NewAggregatorServer"},
	}
	found := map[string]bool{}
	for _, pkg := range []string{"transport", "endpoint"} {
		for s, called := range calls(t, pkg) {
			for loop, callers := range entries {
				if !slices.Contains(called, loop) {
					continue
				}
				found[loop] = true
				if !slices.Contains(callers, s.name) {
					t.Errorf("%v calls %s", s, loop)
				}
			}
		}
	}
	if len(found) != len(entries) {
		t.Errorf("of the event loops only %v are entered", found)
	}
}
