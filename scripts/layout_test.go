// SPDX-License-Identifier: Apache-2.0

package scripts

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// headBytes is how much of a file its head comments have.
const headBytes = 2000

// handWritten returns the texts of sources in git that no program has generated, by path from the
// repository's root. A kind is how paths end, such as .go; there are some of each, if only
// generated ones.
func handWritten(t *testing.T, kinds ...string) map[string][]byte {
	t.Helper()
	patterns := []string{"-C", "..", "ls-files", "-z"}
	found := map[string]int{}
	for _, kind := range kinds {
		patterns = append(patterns, "*"+kind)
		found[kind] = 0
	}
	out, err := exec.Command("git", patterns...).Output()
	if err != nil {
		t.Skipf("not a clone: %v", err)
	}
	sources := map[string][]byte{}
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("..", path))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			if strings.HasSuffix(path, kind) {
				found[kind]++
			}
		}
		if generated.Match(text[:min(len(text), headBytes)]) {
			continue
		}
		sources[path] = text
	}
	for kind, n := range found {
		if n == 0 {
			t.Errorf("no file *%s was looked at", kind)
		}
	}
	return sources
}

// mostLines is how long a file may be.
const mostLines = 500

// TestFilesAreShort: a file has one subject, which does not need more lines.
func TestFilesAreShort(t *testing.T) {
	for path, text := range handWritten(t, ".go", ".c", ".h", ".cc", ".py", ".sh", ".p4", ".s") {
		if lines := len(bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))); lines > mostLines {
			t.Errorf("%s has %d lines, of at most %d: divide it along its subjects", path, lines, mostLines)
		}
	}
}

// mostColumns is how long a line that is a comment may be. A tab counts as one.
const mostColumns = 100

// outputs begins what an example prints: its lines are as they are.
var outputs = regexp.MustCompile(`(?i)^//\s*(unordered )?output:`)

// TestCommentsWrap: no line of Go that begins with // and words is wider than the others.
func TestCommentsWrap(t *testing.T) {
	for path, text := range handWritten(t, ".go") {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		lines := strings.Split(string(text), "\n")
		for _, block := range file.Comments {
			wrapsComment(t, fset, lines, block)
		}
	}
}

// wrapsComment checks a block of comments of a file.
func wrapsComment(t *testing.T, fset *token.FileSet, lines []string, block *ast.CommentGroup) {
	for _, comment := range block.List {
		if outputs.MatchString(comment.Text) {
			return
		}
		at := fset.PositionFor(comment.Pos(), false)
		line := lines[at.Line-1]
		if !strings.HasPrefix(strings.TrimLeft(line, "\t "), "// ") {
			continue // code, or a directive
		}
		if columns := utf8.RuneCountInString(line); columns > mostColumns {
			t.Errorf("%s:%d: the comment has %d characters, of at most %d: break the line", at.Filename, at.Line, columns, mostColumns)
		}
	}
}
