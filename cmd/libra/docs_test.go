package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCommandsInPagesExist parses each libra command that the documents show: the
// command and its flags exist, and values and arguments are of the right kind. A value
// may be left out ("--data …", "--harvest …"), and brackets surround what is optional.
func TestCommandsInPagesExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md", "../../CHANGELOG.md", "../../afxdp/README.md")
	fence := regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	// A command of prose is in backquotes, one of a block has a line of its own, or
	// follows the program that runs it, and ends before a comment or a pipe.
	inProse := regexp.MustCompile("`((?:bin/)?libra [^`]+)`")
	inBlocks := regexp.MustCompile(`(?m)^(?:.* exec \w+)?\s*((?:bin/)?libra [^#|\n]+)`)
	seen := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		commands := inProse.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1)
		for _, block := range fence.FindAllString(string(text), -1) {
			commands = append(commands, inBlocks.FindAllStringSubmatch(block, -1)...)
		}
		for _, command := range commands {
			words := strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(command[1]))[1:]
			root := newRoot()
			root.InitDefaultCompletionCmd()
			c, rest, err := root.Find(words)
			if err != nil || !c.HasParent() {
				t.Errorf("%s: %q: no such command, %v", page, command[1], err)
				continue
			}
			seen[c.CommandPath()] = true
			if elided := slices.ContainsFunc(rest, func(w string) bool { return w == "…" }); elided {
				for _, word := range rest {
					if name, ok := strings.CutPrefix(word, "--"); ok && c.Flags().Lookup(name) == nil {
						t.Errorf("%s: %q: no flag %s", page, command[1], word)
					}
				}
				continue
			}
			if err := c.ParseFlags(rest); err != nil {
				t.Errorf("%s: %q: %v", page, command[1], err)
				continue
			}
			if len(rest) == 0 {
				continue // it is only named
			}
			if err := c.ValidateArgs(c.Flags().Args()); err != nil {
				t.Errorf("%s: %q: %v", page, command[1], err)
			}
			if c.HasAvailableSubCommands() {
				t.Errorf("%s: %q: %s has no command %q", page, command[1], c.CommandPath(), rest[0])
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d commands were found: %v", len(seen), seen)
	}
}
