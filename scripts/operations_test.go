// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// literals are the strings in the Go files that are no tests, with those of tags.
func literals(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					found = append(found, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestOperationsKnowsTheProgram looks for the counters and the messages that
// docs/operations.md explains. Of a message it looks for the parts between values.
func TestOperationsKnowsTheProgram(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	all := literals(t)
	rows := func(title string) (names []string) {
		_, section, _ := strings.Cut(string(text), "\n## "+title+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section, -1) {
			for _, name := range span.FindAllString(row[1], -1) {
				names = append(names, strings.Trim(name, "`"))
			}
		}
		return names
	}

	counters := rows("Counters")
	for _, name := range counters {
		stem, more := strings.CutSuffix(name, "...")
		pattern := `^` + stem + `$|json:"` + stem + `[",]`
		if more {
			pattern = `(^|json:")` + stem
		}
		if !slices.ContainsFunc(all, regexp.MustCompile(pattern).MatchString) {
			t.Errorf("no counter is called %s", name)
		}
	}
	messages := rows("Errors")
	parts := 0
	for _, message := range messages {
		for _, part := range regexp.MustCompile(`\.\.\.|[:()]|"[^"]*"|\b(eth)?[0-9][0-9.]*s?\b|libra\b|CAP_\w+,?`).Split(message, -1) {
			part = strings.Trim(part, " ,[]")
			// The system's, or Go's.
			if strings.Count(part, " ") == 0 || part == "address already in use" || part == "no such network interface" {
				continue
			}
			if parts++; !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, part) }) {
				t.Errorf("no message has %q, as %q does", part, message)
			}
		}
	}
	if len(counters) < 25 || len(messages) < 25 || parts < 30 {
		t.Errorf("only %d counters, %d messages and %d parts of these were found", len(counters), len(messages), parts)
	}
}

// TestContentsAreComplete holds the list of contents of docs/operations.md against its sections.
func TestContentsAreComplete(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	contents, _, _ := strings.Cut(string(text), "\n## ")
	var listed, sections []string
	for _, m := range regexp.MustCompile(`(?m)^- \[.+\]\(#(.+)\)$`).FindAllStringSubmatch(contents, -1) {
		listed = append(listed, m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)^## .+$`).FindAllString(fence.ReplaceAllString(string(text), ""), -1) {
		sections = append(sections, anchors(m)...)
	}
	if len(sections) < 10 || !slices.Equal(listed, sections) {
		t.Errorf("the contents are %q, the sections %q", listed, sections)
	}
}
