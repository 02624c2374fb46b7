// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// The copies of a function's body are function literals with the same parameters and results. Code
// outside functions, and functions with a parameter that hides a type, have none.
func TestCopies(t *testing.T) {
	const source = `package p

var v = 1 + 1

func plain() int { return 1 + 2 }

func labelled() {
l:
	for 1+3 > 0 {
		continue l
	}
}

func after() bool { return plain() == 1 && plain() == 2 }

func (s set) named(a, _ int, more ...string) (n int, err error) {
	b, err := 4+5, error(nil)
	return b, err
}

type set struct{}

func hidden(set set) bool { return 1+6 > 0 }
`
	of := func(old, with string) *mutant {
		at := strings.Index(source, old)
		return &mutant{text: []byte(source), start: at, end: at + len(old), with: with}
	}
	list := []*mutant{
		of("1 + 1", "1 - 1"), of("1 + 2", "1 - 2"), of("1+3", "1-3"), of("&&", "||"), of("== 2", "!= 2"),
		of("4+5", "4-5"), of("1+6", "1-6"),
	}
	for i, m := range list {
		m.number = i + 1
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := withCopies(fset, file, slices.Clone(list))
	for _, want := range []string{
		"var v = 1 + 1\n",
		"func plain() int {\nswitch mutant__ {\ncase 2:\nreturn func() int { return 1 - 2 }()\n}\n return 1 + 2 }\n",
		"case 3:\nfunc() {\nl:\n\tfor 1-3 > 0 {\n\t\tcontinue l\n\t}\n}()\nreturn\n}\n\nl:\n",
		"case 4:\nreturn func() bool { return plain() == 1 || plain() == 2 }()\ncase 5:\nreturn func() bool { return plain() == 1 && plain() != 2 }()\n}\n",
		"case 6:\nreturn func(s set, a int, more ...string) (n int, err error) {\n\tb, err := 4-5, error(nil)\n\treturn b, err\n}(s, a, more...)\n}\n",
		"func hidden(set set) bool { return 1+6 > 0 }\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\ndoes not contain %q", got, want)
		}
	}
	for i, m := range list {
		if alone := i == 0 || i == 6; alone != (m.number == 0) {
			t.Errorf("mutant %d has number %d", i+1, m.number)
		}
	}
	if file, err = parser.ParseFile(fset, "p.go", got+"\nvar mutant__ int\n", 0); err == nil {
		_, err = new(types.Config).Check("p", fset, []*ast.File{file}, nil)
	}
	if err != nil {
		t.Error(err)
	}
}
