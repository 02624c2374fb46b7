// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/study/tofino"
)

func newP4() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "p4",
		Short: "Study the switch programs",
	}
	cmd.AddCommand(newP4Study())
	return cmd
}

func newP4Study() *cobra.Command {
	var out results
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Print the Tofino resources of the switch programs, next to the paper's",
		Long: `Prints the registers, tables and counters of the switch programs, and the resources that
they need in a Tofino's pipeline, next to the paper's figures (§5.7). It measures nothing:
declarations are read from the programs, and the rest is derived.`,
		Example: "  libra p4 study --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := tofino.Run()
			if err != nil {
				return err
			}
			return out.writeReport(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&out.json, "json", false, "print one JSON object")
	return cmd
}

// newBenchP4 returns the command of 'libra p4 study' by its former name.
func newBenchP4() *cobra.Command {
	cmd := newP4Study()
	cmd.Use, cmd.Hidden, cmd.Deprecated = "p4", true, "use 'libra p4 study'"
	return cmd
}
