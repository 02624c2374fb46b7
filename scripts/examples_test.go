// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A new user's programs are short: count, echo, answer over UDP on all queues, send at a
// rate, each in at most 40 lines, with the network that the examples make for themselves.
func TestExampleProgramsAreShort(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "../afxdp/example_group_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]int{"ExampleOpenAll": 0, "ExampleServe": 0, "ExampleUDP_Reply": 0, "ExamplePace": 0}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if _, ok := programs[f.Name.Name]; ok {
			programs[f.Name.Name] = files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1
		}
	}
	for name, lines := range programs {
		if lines == 0 || lines > 40 {
			t.Errorf("%s has %d lines, want 1 to 40", name, lines)
		}
	}
}

// The first program of the packet engine builds as its page shows it, and the
// package's documentation has the same one.
func TestFirstProgram(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, program, _ := strings.Cut(read("../afxdp/README.md"), "```go\n")
	program, _, ok := strings.Cut(program, "```")
	if !ok {
		t.Fatal("afxdp/README.md has no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, file).CombinedOutput(); err != nil {
		t.Errorf("it does not build: %v\n%s", err, out)
	}
	_, function, _ := strings.Cut(program, "func main()")
	var page strings.Builder
	for line := range strings.Lines(read("../afxdp/doc.go")) {
		page.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "//"), "\t"))
	}
	if !strings.Contains(page.String(), "func main()"+function) {
		t.Error("afxdp/doc.go has another one")
	}
}
