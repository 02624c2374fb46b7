// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// What a new user of afxdp has to write is short.
func TestExamplesAreShort(t *testing.T) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "../afxdp/example_group_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Example") {
			continue
		}
		found++
		if lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; lines > 40 {
			t.Errorf("%s has %d lines", f.Name, lines)
		}
	}
	if found < 4 {
		t.Errorf("%d examples", found)
	}
}
