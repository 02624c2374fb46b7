// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestUnitsCallCommands parses the commands of the systemd units, and compares their capabilities
// with docs/operations.md, and the statuses on which they act with the command's.
func TestUnitsCallCommands(t *testing.T) {
	units, err := filepath.Glob("../../packaging/systemd/*.service")
	if err != nil || len(units) != 7 {
		t.Fatalf("%d units, %v", len(units), err)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/libra (.+)$`).FindSubmatch(text)
		if start == nil {
			t.Fatalf("%s starts nothing", unit)
		}
		c, rest, err := newRoot().Find(strings.Fields(strings.ReplaceAll(string(start[1]), "%i", "1")))
		if err != nil || !c.HasParent() {
			t.Fatalf("%s: %s: %v", unit, start[1], err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%s: %s: %v", unit, start[1], err)
		}
		lines := []string{
			"Restart=on-failure", fmt.Sprint("SuccessExitStatus=", exitInterrupted), fmt.Sprint("RestartPreventExitStatus=", exitUsage),
			"StartLimitIntervalSec=0",
		}
		if c.Name() == "ps" { // also one of several
			lines = append(lines, fmt.Sprint("RestartPreventExitStatus=", exitRemoved))
		}
		for _, line := range lines {
			if !strings.Contains(string(text), "\n"+line+"\n") {
				t.Errorf("%s: no line %s", unit, line)
			}
		}
		if name := filepath.Base(unit); !strings.Contains(string(page), strings.TrimSuffix(name, ".service")) {
			t.Errorf("docs/operations.md does not name %s", name)
		}
		for _, set := range regexp.MustCompile(`(?m)^(?:Ambient|CapabilityBounding)\w+=(.+)$`).FindAllSubmatch(text, -1) {
			if caps := strings.Fields(string(set[1])); len(caps) != 4 || slices.ContainsFunc(caps, func(c string) bool { return !strings.Contains(string(page), c) }) {
				t.Errorf("%s: capabilities %s are not those of docs/operations.md", unit, set[1])
			}
		}
	}
}

// TestCommandsInPagesExist parses each libra command that the documents show: the command and its
// flags exist, and values and arguments are of the right kind. A value may be left out ("--data …",
// "--harvest …"), and brackets surround optional parts.
func TestCommandsInPagesExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(append(pages, more...), "../../README.md", "../../CHANGELOG.md", "../../afxdp/README.md")
	fence := regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	// A command in prose is in backquotes, a command in a block has its own line, or follows the
	// program that runs it, and ends before a comment or a pipe.
	inProse := regexp.MustCompile("`((?:bin/)?libra [^`]+)`")
	inBlocks := regexp.MustCompile(`(?m)^(?:.* exec \w+)?\s*((?:bin/)?libra [^#|>&\n]+)`)
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
				continue // only a name
			}
			if err := c.ValidateArgs(c.Flags().Args()); err != nil {
				t.Errorf("%s: %q: %v", page, command[1], err)
			}
			if isGroup(c) {
				t.Errorf("%s: %q: %s has no command %q", page, command[1], c.CommandPath(), rest[0])
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d commands were found: %v", len(seen), seen)
	}
}
