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
	Old    string `json:"old"` // the line as it is, without comments
	New    string `json:"new"` // the same line with the change
	Result string `json:"result,omitempty"`
	By     string `json:"by,omitempty"`     // the first test that failed, or the one that did not end
	Reason string `json:"reason,omitempty"` // why it is known to be equivalent

	text       []byte // of the file
	start, end int    // what is replaced: offsets in it
	with       string
	number     int // selects it in tests that contain several; 0: it is compiled alone
}

// The results of a mutant.
const (
	killed     = "killed"
	timedOut   = "timed out" // killed too: the tests did not end
	survived   = "survived"
	equivalent = "equivalent"   // on the list, and survived as it should
	mistaken   = "mistaken"     // on the list, but a test kills it
	broken     = "not compiled" // the type checker accepts it, the compiler does not
)

// String names the place and the change, on one line.
func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s  =>  %s", m.File, m.Line, m.Column, m.Kind, shorten(m.Old), shorten(m.New))
}

// mutatedFile returns the file with the change.
func (m *mutant) mutatedFile() []byte {
	return bytes.Join([][]byte{m.text[:m.start], []byte(m.with), m.text[m.end:]}, nil)
}

// changedLexemes returns the lexemes of a part of the file with the change, which is within that
// part.
func (m *mutant) changedLexemes(start, end int) string {
	return join(splitGo(string(m.text[start:m.start]) + m.with + string(m.text[m.end:end])))
}

func byPlace(a, b *mutant) int {
	return cmp.Or(cmp.Compare(a.File, b.File),
		cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end), cmp.Compare(a.with, b.with))
}

// newMutant makes one of a replacement between two positions of a file.
func (p *goPackage) newMutant(name, kind string, from, to token.Pos, with string) *mutant {
	at := p.fset.Position(from)
	m := &mutant{
		File: p.dir + "/" + name, Line: at.Line, Column: at.Column, Kind: kind,
		text: p.text[name], start: at.Offset, end: p.fset.Position(to).Offset, with: with,
	}
	code := p.code[name]
	lineStart := strings.LastIndexByte(code[:m.start], '\n') + 1
	lineEnd := len(code)
	if n := strings.IndexByte(code[m.end:], '\n'); n >= 0 {
		lineEnd = m.end + n
	}
	m.Old = oneLine(code[lineStart:lineEnd])
	m.New = oneLine(code[lineStart:m.start] + withoutComments(with) + code[m.end:lineEnd])
	for _, d := range p.files[name].Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Pos() <= from && to <= f.End() {
			m.Func = funcName(f)
		}
	}
	return m
}

func oneLine(code string) string { return strings.Join(strings.Fields(code), " ") }

// shorten keeps the beginning of long code, and its end, where two changes of a long statement
// may differ.
func shorten(code string) string {
	if r := []rune(code); len(r) > 160 {
		return string(r[:110]) + " ... " + string(r[len(r)-45:])
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
