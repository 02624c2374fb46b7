// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

// A mutant is one change of one file.
type mutant struct {
	File   string `json:"file"` // within the module, with slashes
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Func   string `json:"func"` // the function or method around it
	Kind   string `json:"kind"`
	Old    string `json:"old"` // the line as it is
	New    string `json:"new"` // the same line with the change
	Result string `json:"result,omitempty"`
	By     string `json:"by,omitempty"`     // the first test that failed, or the one that did not end
	Reason string `json:"reason,omitempty"` // why it is known to be equivalent

	text       []byte // of the file
	start, end int    // what is replaced: offsets in it
	with       string
	number     int // by which tests that have all mutants choose it, or 0
}

// The results of a mutant.
const (
	killed     = "killed"
	timedOut   = "timed out" // killed too: the tests did not end
	survived   = "survived"
	equivalent = "equivalent"   // on the list, and survived as it should
	mistaken   = "mistaken"     // on the list, but a test kills it
	broken     = "not compiled" // the type checker takes it, the compiler does not
)

// String names the place and the change.
func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s  =>  %s", m.File, m.Line, m.Column, m.Kind, m.Old, m.New)
}

// apply returns the file with the change.
func (m *mutant) apply() []byte {
	return bytes.Join([][]byte{m.text[:m.start], []byte(m.with), m.text[m.end:]}, nil)
}

func byPlace(a, b *mutant) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end), cmp.Compare(a.with, b.with))
}

// mutant makes one of a replacement between two positions of a file.
func (p *loaded) mutant(name, kind string, from, to token.Pos, with string) *mutant {
	text := p.text[name]
	at := p.fset.Position(from)
	m := &mutant{
		File: p.dir + "/" + name, Line: at.Line, Column: at.Column, Kind: kind,
		text: text, start: at.Offset, end: p.fset.Position(to).Offset, with: with,
	}
	lineStart := bytes.LastIndexByte(text[:m.start], '\n') + 1
	lineEnd := len(text)
	if n := bytes.IndexByte(text[m.end:], '\n'); n >= 0 {
		lineEnd = m.end + n
	}
	m.Old = squeeze(string(text[lineStart:lineEnd]))
	m.New = squeeze(string(text[lineStart:m.start]) + with + string(text[m.end:lineEnd]))
	for _, d := range p.files[name].Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Pos() <= from && to <= f.End() {
			m.Func = funcName(f)
		}
	}
	return m
}

// squeeze puts code on one line. It keeps the beginning of long code, and its
// end, which tells one change of a long statement from another.
func squeeze(code string) string {
	code = strings.Join(strings.Fields(code), " ")
	if r := []rune(code); len(r) > 160 {
		code = string(r[:110]) + " ... " + string(r[len(r)-45:])
	}
	return code
}

func funcName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}
