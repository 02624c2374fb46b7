// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
)

//go:generate sh -c "go run . config reference > ../../docs/config.md.tmp && mv ../../docs/config.md.tmp ../../docs/config.md"

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and explain cluster files",
	}
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Look for mistakes in a cluster file",
		Long: `Reads a cluster file as 'libra switch', 'ps' and 'worker' do, and reports every mistake
with its line, its field and the possible values. Files named in it are not opened.`,
		Args: oneArg("cluster file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.ReadAny(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: job %d, backend %s, %s\n", args[0], c.Job.ID, c.Backend,
				english.Plural(len(c.Workers), "worker", ""))
			return err
		},
	}
	show := func(use, short string, text func() []byte) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(text())
			return err
		}}
	}
	cmd.AddCommand(check,
		show("example", "Print a cluster file with every field, explained", cluster.Example),
		show("reference", "Print all fields with defaults and ranges, as Markdown", cluster.Markdown))
	return cmd
}
