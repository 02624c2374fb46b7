// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are the Markdown files of the repository, by path from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || len(d.Name()) > 2 && d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if filepath.Ext(name) == ".md" && d.Type().IsRegular() {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			found[filepath.ToSlash(strings.TrimPrefix(name, "../"))] = string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CHANGELOG.md", "afxdp/README.md", "docs/wire.md", "docs/spec/README.md"} {
		if found[name] == "" {
			t.Fatalf("%s was not found, only %d pages", name, len(found))
		}
	}
	return found
}

var (
	fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	span  = regexp.MustCompile("`[^`]+`")
)

// anchors are the names by which a page's headings can be linked to, as GitHub makes
// them: lower case, no punctuation, hyphens for spaces.
func anchors(text string) (names []string) {
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// TestLinksResolve follows every link between the pages, and to files, with its anchor.
func TestLinksResolve(t *testing.T) {
	all, links := pages(t), 0
	for name, text := range all {
		prose := span.ReplaceAllString(fence.ReplaceAllString(text, ""), "``")
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, anchored := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat("../" + target); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if anchored && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", name, m[1], target)
			}
		}
	}
	if links < 40 {
		t.Errorf("%d links were found", links)
	}
}

// snippets are the pieces of code of a page, in backquotes or in blocks: a line each.
func snippets(text string) (found []string) {
	for _, block := range fence.FindAllString(text, -1) {
		found = append(found, strings.Split(block, "\n")...)
	}
	text = fence.ReplaceAllString(text, "")
	for _, s := range span.FindAllString(text, -1) {
		found = append(found, strings.ReplaceAll(strings.Trim(s, "`"), "\n", " "))
	}
	for line := range strings.Lines(text) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			found = append(found, code)
		}
	}
	return found
}

// tests lists the names of all tests, benchmarks, fuzz targets and examples in a
// folder, or in all of them, with those of their files.
func tests(t *testing.T, pattern string) (names []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		if in, err := filepath.Match(pattern, filepath.Dir(name)); err != nil || pattern != "" && !in {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestNamesInPagesExist looks for what the pages name in code: tests, files and
// packages, make targets with their variables.
func TestNamesInPagesExist(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	all, named, made, files := tests(t, ""), 0, 0, 0
	for name, text := range pages(t) {
		for _, code := range snippets(text) {
			if test := regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)\w+$`).FindString(code); test != "" {
				if named++; !slices.Contains(all, test) {
					t.Errorf("%s names %s, which does not exist", name, test)
				}
			}
			if words := strings.Fields(strings.TrimPrefix(code, "sudo ")); len(words) > 1 && words[0] == "make" {
				for _, word := range words[1:] {
					if word == "#" {
						break
					}
					variable, _, set := strings.Cut(word, "=")
					rule := `(?m)^` + regexp.QuoteMeta(word) + `:`
					if set {
						rule = `(?m)^` + variable + `\s*\?=`
					}
					if made++; !regexp.MustCompile(rule).Match(makefile) {
						t.Errorf("%s: %q, and the Makefile has no %s", name, code, word)
					}
				}
			}
			for _, word := range strings.Fields(code) {
				first, _, ok := strings.Cut(strings.TrimPrefix(word, "./"), "/")
				if info, err := os.Stat("../" + first); !ok || first == "bin" || first == "out" || first == "" || first[0] == '.' || err != nil || !info.IsDir() {
					continue
				}
				word, _, _ = strings.Cut(strings.TrimRight(word, ",;)"), ":")
				if files++; word != "testdata/fuzz" {
					if _, err := os.Stat("../" + word); err != nil {
						t.Errorf("%s names %s: %v", name, word, err)
					}
				}
			}
		}
	}
	if named < 8 || made < 15 || files < 60 {
		t.Errorf("only %d tests, %d arguments of make and %d files were found", named, made, files)
	}
}

// TestCommandsForTestsRunSome reads each go test command of the pages: its folder
// exists, its patterns have tests or benchmarks there, and its tests know its flags.
func TestCommandsForTestsRunSome(t *testing.T) {
	commands := 0
	for name, text := range pages(t) {
		for _, code := range snippets(text) {
			_, arguments, ok := strings.Cut(code, "go test ")
			if !ok {
				continue
			}
			arguments, _, _ = strings.Cut(arguments, "#")
			words := strings.Fields(strings.NewReplacer("'", "", `\|`, "|").Replace(arguments))
			folder := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })
			if folder < 0 {
				t.Errorf("%s: %q has no folder", name, code)
				continue
			}
			commands++
			there := tests(t, "../"+words[folder][2:])
			sources, err := filepath.Glob("../" + words[folder][2:] + "/*_test.go")
			if err != nil || len(there) == 0 {
				t.Errorf("%s: %q: no tests there, %v", name, code, err)
			}
			for i, word := range words {
				switch {
				case word == "-run" && words[i+1] != "-" && words[i+1] != "^$", word == "-bench":
					pattern := regexp.MustCompile(strings.TrimSuffix(words[i+1], "/"))
					if !slices.ContainsFunc(there, func(n string) bool {
						return pattern.MatchString(n) && strings.HasPrefix(n, "Benchmark") == (word == "-bench")
					}) {
						t.Errorf("%s: %q matches nothing in %s", name, code, words[folder])
					}
				case i > folder && word[0] == '-' && !slices.Contains([]string{"-", "-v", "-run"}, word):
					defined := regexp.MustCompile(`flag\.\w+\("` + word[1:] + `"`)
					if !slices.ContainsFunc(sources, func(s string) bool {
						text, err := os.ReadFile(s)
						return err == nil && defined.Match(text)
					}) {
						t.Errorf("%s: %q: the tests of %s have no flag %s", name, code, words[folder], word)
					}
				}
			}
		}
	}
	if commands < 8 {
		t.Errorf("only %d commands were found", commands)
	}
}

// TestModelsNameTheirCode looks for the files that the protocol's models say they are of.
func TestModelsNameTheirCode(t *testing.T) {
	models, err := filepath.Glob("../docs/spec/*.pml")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, model := range models {
		text, err := os.ReadFile(model)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range regexp.MustCompile(`[a-z0-9_]+(/[a-z0-9_]+)+\.(go|h)`).FindAllString(string(text), -1) {
			if _, err := os.Stat("../" + path); err != nil {
				t.Errorf("%s: %v", filepath.Base(model), err)
			}
			named++
		}
	}
	if named < 20 {
		t.Errorf("only %d files were found", named)
	}
}
