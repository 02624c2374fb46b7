// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/parser"
	"go/token"
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
