// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackagesReadAsPages looks at the documentation of every package that others can
// import: it tells units, errors, ownership and which goroutines may call, and it has
// an example for the whole package that tests run.
func TestPackagesReadAsPages(t *testing.T) {
	pages := 0
	for dir := range imports(t) {
		part := strings.Split(dir, "/")
		if slices.Contains(part, "internal") || slices.Contains([]string{"bench", "clients", "cmd", "scripts"}, part[0]) {
			continue
		}
		pages++
		sources, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		var text string
		var tested []*ast.File
		for _, name := range sources {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "_test.go") {
				tested = append(tested, file)
			} else {
				text += file.Doc.Text()
			}
		}
		for _, subject := range []string{"units?", "errors?", "(owns?|ownership|belongs?|memory|messages)", "(goroutines?|concurrent)"} {
			if !regexp.MustCompile(`(?i)\b` + subject + `\b`).MatchString(text) {
				t.Errorf("the documentation of %s has nothing about %s", dir, subject)
			}
		}
		// Tests of links need a testing.T, so linktest's example is a test; that of
		// the messages of control is control's.
		if dir == "link/linktest" || dir == "control/controlpb" {
			continue
		}
		if examples := doc.Examples(tested...); !slices.ContainsFunc(examples, func(e *doc.Example) bool {
			return (e.Name == "" || dir == "afxdp") && e.Output != "" // afxdp has one for each type
		}) {
			t.Errorf("%s has no example that runs", dir)
		}
	}
	if pages < 16 {
		t.Errorf("only %d packages were found", pages)
	}
}
