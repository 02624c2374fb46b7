// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

//go:generate sh -c "go run . reference markdown > ../../docs/cli.md.tmp && mv ../../docs/cli.md.tmp ../../docs/cli.md"

// newReference returns the command that writes docs/cli.md and the manual pages. It is for
// those who build Libra, and hidden from others.
func newReference() *cobra.Command {
	cmd := &cobra.Command{Use: "reference", Short: "Write the help of the commands as Markdown or manual pages",
		Hidden: true}
	markdown := &cobra.Command{
		Use: "markdown", Short: "Print one Markdown page about all commands", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), markdownReference(newRoot()))
			return err
		},
	}
	var folder string
	man := &cobra.Command{
		Use: "man --out FOLDER", Short: "Write a manual page for each command", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if folder == "" {
				return usagef(cmd, "--out is required")
			}
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			root := newRoot()
			root.DisableAutoGenTag = true // which has the day
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Libra " + release(), Manual: "Libra"}, folder)
		},
	}
	man.Flags().StringVar(&folder, "out", "", "`folder` for the pages")
	cmd.AddCommand(markdown, man)
	return cmd
}

// markdownReference describes all commands, which it takes from the root, in one page.
func markdownReference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`# Commands

Every command with its flags, as ` + "`--help`" + ` shows them. This page is generated; a test compares
it with the program.

- Values of a list are separated by commas: ` + "`--sizes 190,1414`" + `.
- Times have a unit: ` + "`500ms`, `20s`, `1m30s`" + `.
- All commands take ` + "`--help`, and `--verbose` (`-v`)" + ` to log details to standard error.

## Exit codes

| code | meaning |
|---|---|
`)
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.meaning)
	}
	b.WriteString(`
## JSON

Commands with ` + "`--json`" + ` print one object, on one line; ` + "`switch`, `ps` and `worker`" + ` print one for each event. Each
object has a member ` + "`schema_version`" + `, which increases when a key is removed or changes its meaning; keys may be
added at any time. Names end with units: ` + "`_s`, `_ns`, `_bytes`, `_per_s`" + `. Keys that do not apply are absent. Logs and progress go to
standard error. [schema](schema) has a JSON Schema for each command, with every key.
`)
	b.WriteString("\n## All commands\n\n| command | purpose |\n|---|---|\n")
	for _, c := range leaves(root) {
		fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	for _, c := range leaves(root) {
		describe(&b, c)
	}
	return b.String()
}

// leaves returns the commands that do something themselves, and are not hidden.
func leaves(c *cobra.Command) (all []*cobra.Command) {
	if c.HasParent() && !isGroup(c) {
		all = append(all, c)
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, leaves(sub)...)
		}
	}
	return all
}

// describe writes the section of a command.
func describe(b *strings.Builder, c *cobra.Command) {
	c.InitDefaultHelpFlag() // adds [flags] to the line of usage
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```\nusage: %s\n```\n", c.CommandPath(), c.Short, c.UseLine())
	if c.Long != "" {
		fmt.Fprintf(b, "\n%s\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	var flags []string
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !f.Hidden {
			flags = append(flags, flagRow(f))
		}
	})
	if flags != nil {
		fmt.Fprintf(b, "\n| flag | meaning | default |\n|---|---|---|\n%s", strings.Join(flags, ""))
	}
	if c.Flags().Lookup("json") != nil {
		file := schemaFile(c.CommandPath())
		fmt.Fprintf(b, "\nJSON: [schema/%s](schema/%s)\n", file, file)
	}
}

// kindWords replaces names of Go's types.
var kindWords = map[string]string{
	"duration": "time", "float": "number", "float64Slice": "numbers", "int": "number", "ints": "numbers",
	"string": "word", "strings": "words",
	"uint": "number", "uint16": "number", "uints": "numbers",
}

// flagRow is a flag's row of a table.
func flagRow(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	if word := kindWords[kind]; word != "" {
		kind = word
	}
	name := "`--" + strings.TrimSpace(f.Name+" "+kind) + "`"
	if f.Shorthand != "" {
		name += ", `-" + f.Shorthand + "`"
	}
	usage, fallback := cutDefault(usage)
	untold := func(word string) bool { return !strings.Contains(usage, word) }
	if words := f.Annotations[choicesOf]; slices.ContainsFunc(words, untold) {
		usage += ": `" + strings.Join(words, "`, `") + "`"
	}
	if fallback == "" {
		if d := strings.Trim(f.DefValue, "[]"); d != "" && d != "false" && d != "0" && d != "0s" {
			fallback = "`" + d + "`"
		}
	}
	return fmt.Sprintf("| %s | %s | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"), fallback)
}

// cutDefault takes "(default ...)" off the end of a flag's description, where the default
// is no value of the flag.
func cutDefault(usage string) (rest, fallback string) {
	rest, fallback, found := strings.Cut(usage, " (default")
	if !found || !strings.HasSuffix(fallback, ")") {
		return usage, ""
	}
	return rest, strings.TrimLeft(strings.TrimSuffix(fallback, ")"), ": ")
}
