package scripts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/libra-ina/libra/"

// imports lists what each package of the module imports, itself, not in tests.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
}

// floors are the packages of the table in docs/architecture.md, ground floor
// first: a floor has the packages of one row.
func floors(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| package | holds | knows nothing of |")
	table, _, ok := strings.Cut(table, "\n\n")
	if !ok {
		t.Fatal("docs/architecture.md has no table of packages")
	}
	var rows [][]string
	for row := range strings.Lines(table) {
		var packages []string
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(first, -1) {
			packages = append(packages, strings.Trim(name[1], "/"))
		}
		if packages != nil {
			rows = append(rows, packages)
		}
	}
	if len(rows) < 10 {
		t.Fatalf("docs/architecture.md has %d rows of packages", len(rows))
	}
	return rows
}

// TestImportsPointUp holds every import against the table of packages.
func TestImportsPointUp(t *testing.T) {
	rows := floors(t)
	// A package belongs to the row that names it, or the directory above it.
	floor := func(path string) int {
		return slices.IndexFunc(rows, func(row []string) bool {
			return slices.ContainsFunc(row, func(name string) bool { return path == name || strings.HasPrefix(path, name+"/") })
		})
	}
	all := imports(t)
	for i, row := range rows {
		for _, name := range row {
			if !slices.ContainsFunc(slices.Collect(keys(all)), func(p string) bool { return p == name || strings.HasPrefix(p, name+"/") }) {
				t.Errorf("row %d of the table names %s, which does not exist", i+1, name)
			}
		}
	}
	for path, imported := range all {
		from := floor(path)
		for _, p := range imported {
			p, ours := strings.CutPrefix(p, module)
			if to := floor(p); ours && from >= 0 && to > from {
				t.Errorf("%s imports %s, which is below it in the table of docs/architecture.md", path, p)
			}
		}
	}
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestPackagesKnowNothingOf holds packages against the third column of the
// table: what they must not import, themselves or through others of ours.
func TestPackagesKnowNothingOf(t *testing.T) {
	sockets := []string{"net", "golang.org/x/sys/unix", "syscall", module + "afxdp", module + "transport"}
	training := []string{module + "internal/workload"}
	frames := []string{module + "wire"}
	all := imports(t)
	for path, unknown := range map[string][]string{
		"wire":                slices.Concat(sockets, []string{module + "packer", module + "aggregator"}),
		"lut":                 frames,
		"internal/fixedpoint": frames,
		"internal/scaled":     frames,
		"packer":              sockets,
		"packer/placement":    sockets,
		"retransmit":          sockets,
		"aggregator":          sockets,
		"transport":           training,
		"ps":                  slices.Concat(sockets, training),
		"control":             training,
		"internal/capture":    training,
		"internal/workload":   {module + "transport"},
	} {
		seen := map[string]bool{}
		var visit func(string)
		visit = func(p string) {
			for _, i := range all[p] {
				if slices.Contains(unknown, i) {
					t.Errorf("%s knows of %s, by %s", path, i, p)
				}
				if ours, ok := strings.CutPrefix(i, module); ok && !seen[ours] {
					seen[ours] = true
					visit(ours)
				}
			}
		}
		visit(path)
	}
	for path, imported := range all {
		if path != "afxdp" {
			continue
		}
		for _, p := range imported {
			if strings.HasPrefix(p, module) && !strings.HasPrefix(p, module+"internal/") {
				t.Errorf("afxdp knows of Libra: it imports %s", p)
			}
		}
	}
}

// TestReadsNoClock holds the packages whose documentation promises that time is
// passed in, or that the result does not depend on it.
func TestReadsNoClock(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	for _, dir := range []string{"retransmit", "internal/fault", "wire", "lut", "packer", "packer/placement", "aggregator", "internal/fixedpoint", "internal/scaled"} {
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
