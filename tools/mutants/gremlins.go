// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// gremlinsKinds are the kinds of mutation that Gremlins knows, and what each makes
// of an operator (internal/engine/mappings.go of version 0.6.0). Its report names
// the kind and the position, not the result.
var gremlinsKinds = map[string]map[token.Token]token.Token{
	"ARITHMETIC_BASE": {
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
	},
	"CONDITIONALS_BOUNDARY": {
		token.GEQ: token.GTR, token.GTR: token.GEQ, token.LEQ: token.LSS, token.LSS: token.LEQ,
	},
	"CONDITIONALS_NEGATION": {
		token.EQL: token.NEQ, token.NEQ: token.EQL, token.GEQ: token.LSS, token.LSS: token.GEQ,
		token.GTR: token.LEQ, token.LEQ: token.GTR,
	},
	"INCREMENT_DECREMENT": {token.DEC: token.INC, token.INC: token.DEC},
	"INVERT_ASSIGNMENTS": {
		token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
		token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
	},
	"INVERT_BITWISE": {
		token.AND: token.OR, token.OR: token.AND, token.XOR: token.AND, token.AND_NOT: token.AND,
		token.SHL: token.SHR, token.SHR: token.SHL,
	},
	"INVERT_BWASSIGN": {
		token.AND_ASSIGN: token.OR_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN, token.XOR_ASSIGN: token.AND_ASSIGN,
		token.AND_NOT_ASSIGN: token.AND_ASSIGN, token.SHL_ASSIGN: token.SHR_ASSIGN, token.SHR_ASSIGN: token.SHL_ASSIGN,
	},
	"INVERT_LOGICAL":   {token.LAND: token.LOR, token.LOR: token.LAND},
	"INVERT_LOOPCTRL":  {token.BREAK: token.CONTINUE, token.CONTINUE: token.BREAK},
	"INVERT_NEGATIVES": {token.SUB: token.ADD},
	"REMOVE_SELF_ASSIGNMENTS": {
		token.ADD_ASSIGN: token.ASSIGN, token.SUB_ASSIGN: token.ASSIGN, token.MUL_ASSIGN: token.ASSIGN,
		token.QUO_ASSIGN: token.ASSIGN, token.REM_ASSIGN: token.ASSIGN, token.AND_ASSIGN: token.ASSIGN,
		token.OR_ASSIGN: token.ASSIGN, token.XOR_ASSIGN: token.ASSIGN, token.AND_NOT_ASSIGN: token.ASSIGN,
		token.SHL_ASSIGN: token.ASSIGN, token.SHR_ASSIGN: token.ASSIGN,
	},
}

// operatorMutants asks Gremlins for the mutants of the package. A dry run still measures
// coverage, which is of no use here: the empty pattern keeps it from running tests.
func (p *goPackage) operatorMutants(ctx context.Context) ([]*mutant, error) {
	out, err := os.CreateTemp("", "gremlins-*.json")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(out.Name()) }()
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+filepath.Join(p.root, "tools", "go.mod"), "gremlins",
		"unleash", "--silent", "--dry-run", "--invert-assignments", "--invert-bitwise", "--invert-bwassign",
		"--invert-logical", "--invert-loopctrl", "--remove-self-assignments", "--output", out.Name(), "./"+p.dir)
	cmd.Dir = p.root
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -run=^$"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gremlins on %s: %w\n%s", p.dir, err, text)
	}
	mutants, err := p.translateReport(out)
	if err != nil {
		return nil, fmt.Errorf("gremlins on %s: %w", p.dir, err)
	}
	return mutants, nil
}

// translateReport makes mutants of the report of Gremlins.
func (p *goPackage) translateReport(report io.Reader) ([]*mutant, error) {
	var found struct {
		Files []struct {
			Name      string `json:"file_name"`
			Mutations []struct {
				Type         string
				Line, Column int
			}
		}
	}
	if err := json.NewDecoder(report).Decode(&found); err != nil {
		return nil, err
	}
	var mutants []*mutant
	for _, f := range found.Files {
		if !slices.Contains(p.names, f.Name) {
			continue // of another package, another platform, or generated
		}
		operators := p.fileOperators(f.Name)
		for _, g := range f.Mutations {
			op, ok := operators[[2]int{g.Line, g.Column}]
			if !ok {
				return nil, fmt.Errorf("no operator at %s:%d:%d, which the report names", f.Name, g.Line, g.Column)
			}
			with, ok := gremlinsKinds[g.Type][op.tok]
			if !ok {
				continue // x %= y has no opposite
			}
			end := op.pos + token.Pos(len(op.tok.String()))
			mutants = append(mutants, p.newMutant(f.Name, g.Type, op.pos, end, with.String()))
		}
	}
	return mutants, nil
}

type operator struct {
	pos token.Pos
	tok token.Token
}

// fileOperators lists the operators of a file by line and column.
func (p *goPackage) fileOperators(name string) map[[2]int]operator {
	found := map[[2]int]operator{}
	ast.Inspect(p.files[name], func(n ast.Node) bool {
		var op operator
		switch n := n.(type) {
		case *ast.AssignStmt:
			op = operator{n.TokPos, n.Tok}
		case *ast.BinaryExpr:
			op = operator{n.OpPos, n.Op}
		case *ast.BranchStmt:
			op = operator{n.TokPos, n.Tok}
		case *ast.IncDecStmt:
			op = operator{n.TokPos, n.Tok}
		case *ast.UnaryExpr:
			op = operator{n.OpPos, n.Op}
		default:
			return true
		}
		at := p.fset.Position(op.pos)
		found[[2]int{at.Line, at.Column}] = op
		return true
	})
	return found
}
