// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// The kinds of mutation that are found here, and not by Gremlins.
const (
	statementRemoval  = "STATEMENT_REMOVAL"
	argumentSwap      = "ARGUMENT_SWAP"
	conditionNegation = "CONDITION_NEGATION"
)

// syntaxMutants finds statements that can be removed, arguments that can be swapped, and conditions
// that can be negated. It does not change calls of loggers: tests should not fix what a program
// logs.
func (p *goPackage) syntaxMutants(name string) []*mutant {
	var found []*mutant
	add := func(kind string, from, to token.Pos, with string) {
		found = append(found, p.newMutant(name, kind, from, to, with))
	}
	remove := func(n ast.Node) { add(statementRemoval, n.Pos(), n.End(), p.blankUses(name, n)) }
	negate := func(cond ast.Expr) {
		if cond != nil && !hasOperator(cond) {
			add(conditionNegation, cond.Pos(), cond.End(), "!("+p.sourceText(name, cond)+")")
		}
	}
	statements := func(list []ast.Stmt) {
		for _, s := range list {
			switch s := s.(type) {
			case *ast.ExprStmt:
				if !p.isLogCall(s.X) {
					remove(s)
				}
			case *ast.AssignStmt:
				if s.Tok != token.DEFINE && !isBlank(s.Lhs) {
					remove(s)
				}
			case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
				remove(s)
			case *ast.IfStmt:
				if len(s.Body.List) > 0 && !p.onlyLogCalls(s.Body.List) {
					add(statementRemoval, s.Body.Pos(), s.Body.End(), "{ "+p.blankUses(name, s.Body)+" }")
				}
			}
		}
	}
	ast.Inspect(p.files[name], func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Body != nil
		case *ast.BlockStmt:
			statements(n.List)
		case *ast.CaseClause:
			statements(n.Body)
		case *ast.CommClause:
			statements(n.Body)
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.ForStmt:
			negate(n.Cond)
		case *ast.CallExpr:
			if p.isLogCall(n) {
				return false
			}
			for i := 1; i < len(n.Args); i++ {
				if p.argumentsCommute(n, i) {
					continue
				}
				if a, b := n.Args[i-1], n.Args[i]; p.canSwap(name, a, b) {
					between := string(p.text[name][p.textOffset(a.End()):p.textOffset(b.Pos())])
					add(argumentSwap, a.Pos(), b.End(), p.sourceText(name, b)+between+p.sourceText(name, a))
				}
			}
		}
		return true
	})
	return p.withoutDuplicates(name, found)
}

// withoutDuplicates drops the removal of a statement that is the whole body of an if: the removal
// of the body is the same change.
func (p *goPackage) withoutDuplicates(name string, found []*mutant) []*mutant {
	single := map[int]bool{}
	ast.Inspect(p.files[name], func(n ast.Node) bool {
		if s, ok := n.(*ast.IfStmt); ok && len(s.Body.List) == 1 {
			single[p.textOffset(s.Body.List[0].Pos())] = true
		}
		return true
	})
	kept := found[:0]
	for _, m := range found {
		if m.Kind != statementRemoval || !single[m.start] {
			kept = append(kept, m)
		}
	}
	return kept
}

func (p *goPackage) textOffset(pos token.Pos) int { return p.fset.Position(pos).Offset }

func (p *goPackage) sourceText(name string, n ast.Node) string {
	return string(p.text[name][p.textOffset(n.Pos()):p.textOffset(n.End())])
}

// blankUses writes statements without effect that use the local variables and the packages which n
// uses: without them, the rest would often not compile.
func (p *goPackage) blankUses(name string, n ast.Node) string {
	var list []string
	seen := map[types.Object]bool{}
	use := func(o types.Object, code string) {
		if !seen[o] {
			seen[o] = true
			list = append(list, code)
		}
	}
	ast.Inspect(n, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.FuncLit:
			return true
		case *ast.SelectorExpr:
			id, ok := x.X.(*ast.Ident)
			if !ok {
				return true
			}
			pkg, ok := p.info.Uses[id].(*types.PkgName)
			if !ok || p.countUses(name, pkg) > 1 {
				return true
			}
			switch o := p.info.Uses[x.Sel].(type) {
			case *types.TypeName:
				use(pkg, "var _ "+id.Name+"."+o.Name())
			case *types.Func:
				if o.Signature().TypeParams() == nil {
					use(pkg, "_ = "+id.Name+"."+o.Name())
				}
			default:
				use(pkg, "_ = "+id.Name+"."+x.Sel.Name)
			}
		case *ast.Ident:
			v, ok := p.info.Uses[x].(*types.Var)
			if ok && !v.IsField() && v.Parent() != nil && v.Pkg() != nil && v.Parent() != v.Pkg().Scope() &&
				(v.Pos() < n.Pos() || v.Pos() >= n.End()) {
				use(v, "_ = "+v.Name())
			}
		}
		return true
	})
	return strings.Join(list, "; ")
}

// countUses counts how often a file names an imported package.
func (p *goPackage) countUses(name string, pkg *types.PkgName) int {
	count := 0
	ast.Inspect(p.files[name], func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && p.info.Uses[id] == pkg {
			count++
		}
		return true
	})
	return count
}

// argumentsCommute reports whether a call's arguments i-1 and i can be swapped without effect:
// those of min, max and Equal, the operands of the functions of math/bits that add and multiply,
// those of crypto/subtle's comparison, and those of errors.Is, whose order matters only for wrapped
// errors.
func (p *goPackage) argumentsCommute(call *ast.CallExpr, i int) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		_, builtin := p.info.Uses[f].(*types.Builtin)
		return builtin && (f.Name == "min" || f.Name == "max")
	case *ast.SelectorExpr:
		o := p.info.Uses[f.Sel]
		if o == nil || o.Pkg() == nil {
			return false
		}
		if o.Pkg().Path() == "errors" && o.Name() == "Join" {
			return p.onlyCreatesError(call.Args[i-1]) || p.onlyCreatesError(call.Args[i])
		}
		if i != 1 {
			return false
		}
		switch o.Pkg().Path() {
		case "math/bits":
			return strings.HasPrefix(o.Name(), "Add") || strings.HasPrefix(o.Name(), "Mul")
		case "crypto/subtle":
			return o.Name() == "ConstantTimeCompare"
		case "bytes", "maps", "slices":
			return o.Name() == "Equal"
		case "errors":
			return o.Name() == "Is"
		}
	}
	return false
}

// onlyCreatesError reports whether evaluating an error expression only creates the error.
func (p *goPackage) onlyCreatesError(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return true
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	o := p.info.Uses[f.Sel]
	return o != nil && o.Pkg() != nil && (o.Pkg().Path() == "errors" || o.Pkg().Path() == "fmt")
}

// canSwap reports whether a and b are different expressions of the same type.
func (p *goPackage) canSwap(name string, a, b ast.Expr) bool {
	ta, tb := p.info.Types[a], p.info.Types[b]
	if ta.Type == nil || tb.Type == nil || ta.IsType() || tb.IsType() {
		return false
	}
	return types.Identical(types.Default(ta.Type), types.Default(tb.Type)) &&
		p.sourceText(name, a) != p.sourceText(name, b)
}

// hasOperator reports whether Gremlins changes the condition itself.
func hasOperator(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return true
	case *ast.ParenExpr:
		return hasOperator(e.X)
	}
	return false
}

// isBlank reports whether an assignment is to blank identifiers only.
func isBlank(left []ast.Expr) bool {
	return !slices.ContainsFunc(left, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

// isLogCall reports whether e calls a function or method of log/slog.
func (p *goPackage) isLogCall(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	o := p.info.Uses[f.Sel]
	return o != nil && o.Pkg() != nil && o.Pkg().Path() == "log/slog"
}

// onlyLogCalls reports whether all statements call log/slog.
func (p *goPackage) onlyLogCalls(list []ast.Stmt) bool {
	return !slices.ContainsFunc(list, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		return !ok || !p.isLogCall(e.X)
	})
}
