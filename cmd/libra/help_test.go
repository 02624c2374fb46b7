// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commands returns every visible command with its path, as in "libra job list".
func commands() map[string]*cobra.Command {
	found := map[string]*cobra.Command{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden {
			return // used only by other commands
		}
		found[c.CommandPath()] = c
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot()
	root.InitDefaultHelpCmd()
	walk(root)
	return found
}

// TestEveryCommandExplainsItself checks that each command has help, as README promises, and each
// flag a description.
func TestEveryCommandExplainsItself(t *testing.T) {
	for path, c := range commands() {
		args := strings.Fields(path + " --help")[1:]
		stdout, stderr, code := inProcess(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") || !strings.Contains(stdout, c.Short) && !strings.Contains(stdout, c.Long) {
			t.Errorf("%s --help: code %d\n%s%s", path, code, stdout, stderr)
		}
		if c.Short == "" {
			t.Errorf("%s has no description", path)
		}
		for line := range strings.Lines(c.LocalFlags().FlagUsages()) {
			if len(strings.Fields(line)) < 3 {
				t.Errorf("%s: a flag without a description: %s", path, line)
			}
		}
	}
}

// TestCommandsHaveJSON checks that commands have it, except those that print only completion, plain
// numbers, rows or a file.
func TestCommandsHaveJSON(t *testing.T) {
	without := []string{"libra job remove", "libra switch drain", "libra plan apply", "libra export", "libra predict", "libra completion", "libra config check", "libra config example", "libra config reference",
		"libra latency record"}
	for path, c := range commands() {
		if !c.HasParent() || c.Name() == "help" || isGroup(c) {
			continue
		}
		if has := c.Flags().Lookup("json") != nil; has == slices.Contains(without, path) {
			t.Errorf("%s: --json is there: %t", path, has)
		}
	}
}
