// SPDX-License-Identifier: Apache-2.0

package scripts

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// manyLines is the size of a package from which on its methods' names are to be found by grep.
const manyLines = 2000

// TestMethodsHaveTwoWords: in large packages, unexported methods of unexported types have names
// that say whose they are, so that grep finds their callers and no others: child.awaitHarvest, not
// child.await. A method that an interface of its package names, too, may keep its name.
func TestMethodsHaveTwoWords(t *testing.T) {
	files := token.NewFileSet()
	lines := map[string]int{}               // of a package's folder, without tests and generated files
	methods := map[string][]*ast.FuncDecl{} // by folder
	required := map[string]bool{}           // folder and name of methods that interfaces declare
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && path != ".." && (name == "testdata" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) {
			return nil
		}
		dir := filepath.Dir(path)
		lines[dir] += files.File(file.FileStart).LineCount()
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncDecl:
				if name := node.Name.Name; node.Recv != nil && !ast.IsExported(name) && oneWord(name) {
					methods[dir] = append(methods[dir], node)
				}
			case *ast.InterfaceType:
				for _, method := range node.Methods.List {
					for _, name := range method.Names {
						required[dir+" "+name.Name] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	large := 0
	for dir, n := range lines {
		if n <= manyLines {
			continue
		}
		large++
		for _, method := range methods[dir] {
			owner, name := receiver(method), method.Name.Name
			if ast.IsExported(owner) || required[dir+" "+name] {
				continue
			}
			at := files.Position(method.Name.Pos())
			t.Errorf("%s:%d: %s.%s: name it with two words, like child.awaitHarvest for child.await: its package has %d lines, "+
				"and from %d on grep for one word finds too much",
				strings.TrimPrefix(at.Filename, "../"), at.Line, owner, name, n, manyLines)
		}
	}
	if large < 5 {
		t.Errorf("only %d packages have more than %d lines", large, manyLines)
	}
}

// oneWord reports whether a name has no inner capital letter.
func oneWord(name string) bool {
	return name != "_" && !strings.ContainsFunc(name, unicode.IsUpper)
}

// receiver is the name of the type that a method belongs to.
func receiver(method *ast.FuncDecl) string {
	typ := method.Recv.List[0].Type
	for {
		switch of := typ.(type) {
		case *ast.StarExpr:
			typ = of.X
		case *ast.IndexExpr:
			typ = of.X
		case *ast.IndexListExpr:
			typ = of.X
		case *ast.ParenExpr:
			typ = of.X
		case *ast.Ident:
			return of.Name
		default:
			panic(fmt.Sprintf("a method of %T", typ))
		}
	}
}
