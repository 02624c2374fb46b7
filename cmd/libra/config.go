// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
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
with its line, its field and the possible values. Then it reads the hot set, if its file is
on this host, and checks that it fits the model and the switch. Other files are not opened.`,
		Args: oneArg("cluster file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.ReadAny(args[0])
			if err != nil {
				return err
			}
			missing := ""
			if c.Job.HotSet != "" {
				err := node.CheckHotSet(c)
				switch {
				case errors.Is(err, fs.ErrNotExist):
					missing = fmt.Sprintf("; job.hot_set: %s is not on this host, and was not checked", c.Job.HotSet)
				case err != nil:
					return fmt.Errorf("%s: %w", args[0], err)
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: job %d, backend %s, %s%s\n", args[0], c.Job.ID, c.Backend,
				english.Plural(len(c.Workers), "worker", ""), missing)
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
