// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/libra-ina/libra/"

// imports lists what each package of the module imports, itself, not in tests, on any
// platform and with any build tag.
func imports(t *testing.T) map[string][]string { return importsOf(t, "..") }

func importsOf(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root:
			_, err := os.Stat(filepath.Join(name, "go.mod")) // another module
			if err == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var paths []string
		for _, i := range file.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !strings.HasSuffix(name, "_test.go") {
				paths = append(paths, path)
			}
		}
		found[dir] = append(found[dir], paths...) // nothing, but an entry, for a package of tests
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// quoted returns the names in backquotes in the first column of the table in
// docs/architecture.md that has this head, in their order.
func quoted(t *testing.T, head string) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), head)
	table, _, ok := strings.Cut(table, "\n\n")
	if !ok {
		t.Fatalf("docs/architecture.md has no table %s", head)
	}
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(first, -1) {
			names = append(names, name[1])
		}
	}
	return names
}

// misplaced holds packages against the order of the page. It returns the names that
// the page lacks, names twice or invents, and the imports that do not point up.
func misplaced(order []string, all map[string][]string) (wrong []string) {
	floor := map[string]int{}
	for i, name := range order {
		if _, twice := floor[name]; twice {
			wrong = append(wrong, name+" is in the table twice")
		}
		if _, exists := all[name]; !exists {
			wrong = append(wrong, name+" is in the table and does not exist")
		}
		floor[name] = i
	}
	for path, imported := range all {
		from, listed := floor[path]
		if !listed {
			wrong = append(wrong, path+" is missing from the table")
		}
		for _, p := range imported {
			p, ours := strings.CutPrefix(p, module)
			switch to, known := floor[p]; {
			case !ours:
			case !known:
				wrong = append(wrong, path+" imports "+p+", which is missing from the table")
			case listed && to >= from:
				wrong = append(wrong, path+" imports "+p+", which does not come before it")
			}
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

const packages = "| package | holds | knows nothing of |"

// TestImportsPointUp holds every package and import against the table of packages.
func TestImportsPointUp(t *testing.T) {
	for _, w := range misplaced(quoted(t, packages), imports(t)) {
		t.Errorf("docs/architecture.md: %s", w)
	}
}

// TestImportsThatPointDown changes the table and the imports, each in one place, and
// looks for the complaint.
func TestImportsThatPointDown(t *testing.T) {
	order, all := quoted(t, packages), imports(t)
	for _, c := range []struct {
		change func(order []string, all map[string][]string) []string
		want   string
	}{
		{func(o []string, all map[string][]string) []string {
			all["wire"] = append(slices.Clone(all["wire"]), module+"transport")
			return o
		}, "wire imports transport, which does not come before it"},
		{func(o []string, all map[string][]string) []string {
			all["wire"] = append(slices.Clone(all["wire"]), module+"wire/layers") // in the same row
			return o
		}, "wire imports wire/layers, which does not come before it"},
		{func(o []string, all map[string][]string) []string {
			all["wire"] = append(slices.Clone(all["wire"]), module+"wire/testdata") // which ./... leaves out
			return o
		}, "wire imports wire/testdata, which is missing from the table"},
		{func(o []string, all map[string][]string) []string {
			all["surprise"] = nil
			return o
		}, "surprise is missing from the table"},
		{func(o []string, all map[string][]string) []string {
			return append(o, "surprise")
		}, "surprise is in the table and does not exist"},
		{func(o []string, all map[string][]string) []string {
			return append(o, "wire")
		}, "wire is in the table twice"},
	} {
		changed := maps.Clone(all)
		if got := misplaced(c.change(slices.Clone(order), changed), changed); !slices.Contains(got, c.want) {
			t.Errorf("complaints %q, want %q", got, c.want)
		}
	}
}

// TestImportsOnAnyPlatform reads the imports of files that only some builds have.
func TestImportsOnAnyPlatform(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/a.go":                "package a",
		"a/a_linux.go":          "package a; import `linux`",
		"a/a_freebsd_arm64.go":  "package a; import `arm`",
		"a/race.go":             "//go:build race\n\npackage a; import `race`",
		"a/a_test.go":           "package a; import `test`",
		"tests/tests_test.go":   "package tests; import `test`",
		"other/go.mod":          "module other",
		"other/other.go":        "package other",
		"a/testdata/example.go": "package example",
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	got := importsOf(t, root)
	slices.Sort(got["a"])
	if diff := cmp.Diff(map[string][]string{"a": {"arm", "linux", "race"}, "tests": nil}, got); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}

// TestDependenciesAreJustified holds the direct requirements of go.mod against the
// table of dependencies.
func TestDependenciesAreJustified(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{if not (or .Main .Indirect)}}{{.Path}}{{end}}", "all").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	required, listed := strings.Fields(string(out)), quoted(t, "| module | what for |")
	slices.Sort(required)
	slices.Sort(listed)
	if diff := cmp.Diff(required, listed); diff != "" {
		t.Errorf("docs/architecture.md lists other modules than go.mod requires (-go.mod +page):\n%s", diff)
	}
}

// unknownTo returns the third column of the table by package: what it must not import.
func unknownTo(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), packages+"\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	found := map[string][]string{}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(row), "|")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			found[name[1]] = strings.Split(strings.TrimSpace(cells[len(cells)-2]), ", ")
		}
	}
	return found
}

// TestPackagesKnowNothingOf holds packages against the third column of the
// table: what they must not import, themselves or through others of ours.
func TestPackagesKnowNothingOf(t *testing.T) {
	sockets := []string{"net", "golang.org/x/sys/unix", "syscall", module + "afxdp", module + "transport"}
	means := map[string][]string{
		"sockets":              sockets,
		"links":                {module + "link", module + "afxdp", module + "transport"},
		"training":             {module + "train", module + "train/data", module + "train/settings"},
		"frames":               {module + "wire"},
		"transport":            {module + "transport"},
		"Libra":                nil, // see below
		"algorithms":           {module + "lut", module + "packer", module + "retransmit", module + "aggregator"},
		"policy":               {module + "control", module + "cluster", module + "cluster/node"},
		"what is in a payload": {module + "wire/layers", module + "packer", module + "aggregator"},
		"clocks":               nil, // TestReadsNoClock
		"–":                    nil,
	}
	all := imports(t)
	for path, words := range unknownTo(t) {
		var unknown []string
		for _, word := range words {
			what, defined := means[word]
			if !defined {
				t.Errorf("docs/architecture.md: %s knows nothing of %q, which this test does not know either", path, word)
			}
			unknown = append(unknown, what...)
		}
		seen := map[string]bool{}
		var visit func(string)
		visit = func(p string) {
			for _, i := range all[p] {
				if slices.Contains(unknown, i) {
					t.Errorf("%s knows of %s, by %s", path, i, p)
				}
				// Packages that read and write files know of no socket, whatever system calls lock
				// a file.
				if ours, ok := strings.CutPrefix(i, module); ok && !seen[ours] && ours != "internal/file" {
					seen[ours] = true
					visit(ours)
				}
			}
		}
		visit(path)
	}
	for _, p := range all["afxdp"] {
		if strings.HasPrefix(p, module) && !strings.HasPrefix(p, module+"internal/") {
			t.Errorf("afxdp knows of Libra: it imports %s", p)
		}
	}
}

// TestReadsNoClock holds the packages whose documentation promises that time is
// passed in, or that the result does not depend on it.
func TestReadsNoClock(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	for _, dir := range []string{"retransmit", "link/fault", "wire", "lut", "codec", "packer", "packer/placement", "aggregator", "internal/num/fixedpoint", "internal/num/scaled", "sched", "study/hotset", "study/lossy", "study/arithmetic", "study/tofino", "study/schedule"} {
		names, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: no files, %v", dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if id, ok := s.X.(*ast.Ident); ok && id.Name == "time" && slices.Contains(clocks, s.Sel.Name) {
						t.Errorf("%v: time.%s", fset.Position(s.Pos()), s.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// TestCostsAgree holds the ratios in afxdp/README.md against docs/performance.md.
func TestCostsAgree(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	measured := read("../docs/performance.md")
	_, table, _ := strings.Cut(read("../afxdp/README.md"), "| ratio of rates, 190 bytes | transmit | receive | echo |")
	table, _, _ = strings.Cut(table, "\n\n")
	compared := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 5 {
			continue
		}
		for i, test := range []string{"transmit", "receive", "echo"} {
			ratio, name := strings.TrimSpace(cells[i+2]), strings.TrimSpace(cells[1])
			if ratio == "" || strings.HasPrefix(ratio, "-") {
				continue
			}
			compared++
			// A later row may leave out what an earlier one has said of the baseline.
			row := regexp.MustCompile(`(?m)^\| ` + test + `: ` + regexp.QuoteMeta(strings.TrimSuffix(name, " in C")) + `( in C)? \| ` + regexp.QuoteMeta(ratio) + ` \|`)
			if !row.MatchString(measured) {
				t.Errorf("afxdp/README.md has a ratio of %s for %s, %s, and docs/performance.md has not", ratio, name, test)
			}
		}
	}
	if compared < 8 {
		t.Errorf("%d ratios compared", compared)
	}
}

// TestDemoFiguresAgree holds the rates of the demo in README.md against docs/performance.md.
func TestDemoFiguresAgree(t *testing.T) {
	rates := func(name, pattern string) []string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("%s has no rates of the demo", name)
		}
		for i, rate := range m[1:] {
			value, err := strconv.ParseFloat(rate, 64)
			if err != nil {
				t.Fatal(err)
			}
			m[i+1] = strconv.FormatFloat(value, 'f', 0, 64)
		}
		return m[1:]
	}
	demo := rates("../README.md", `samples/s +([0-9.]+) k \(one process: ([0-9.]+) k\)`)
	if got := rates("../docs/performance.md", `([0-9.]+) k samples/s \(one process: ([0-9.]+) k\)`); !slices.Equal(got, demo) {
		t.Errorf("docs/performance.md has %q samples/s, README.md has %q", got, demo)
	}
}
