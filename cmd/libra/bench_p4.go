// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/study/tofino"
)

func newBenchP4() *cobra.Command {
	var out results
	cmd := &cobra.Command{
		Use:   "p4",
		Short: "Print the Tofino resources of the switch programs, next to the paper's",
		Long: `Prints the registers, tables and counters of the switch programs, and the resources that
they need in a Tofino's pipeline, next to the paper's figures (§5.7). It measures nothing:
declarations are read from the programs, and the rest is derived.`,
		Example: "  libra bench p4 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := tofino.Run()
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&out.json, "json", false, "print one JSON object")
	return cmd
}
