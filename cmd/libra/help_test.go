package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commands lists every command that is shown with its path, as in "libra job list".
func commands() map[string]*cobra.Command {
	found := map[string]*cobra.Command{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden {
			return // for other commands to call
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

// TestEveryCommandExplainsItself asks each command for help, as README
// promises, and each flag for a description.
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

// TestReadmeNamesEveryCommand compares the table of README with the commands.
// Those that print more than that they are done, plain numbers or a file, have --json.
func TestReadmeNamesEveryCommand(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| command | does |")
	table, _, _ = strings.Cut(table, "\n\n")
	for path, c := range commands() {
		if !c.HasParent() || c.Name() == "help" || c.HasAvailableSubCommands() {
			continue
		}
		words := strings.Fields(path)[1:]
		named := false
		for row := range strings.Lines(table) {
			row, _, _ = strings.Cut(strings.TrimPrefix(row, "|"), "|")
			all := strings.Contains(row, "`libra "+words[0])
			for _, word := range words[1:] {
				all = all && strings.Contains(row, word)
			}
			named = named || all
		}
		if !named {
			t.Errorf("README's table does not name %s", path)
		}
		if c.Flags().Lookup("json") == nil && !slices.Contains([]string{"libra job remove", "libra export", "libra predict"}, path) && words[0] != "completion" && words[0] != "config" {
			t.Errorf("%s has no --json", path)
		}
	}
}
