// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchSoak() *cobra.Command {
	var (
		c   = soak.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Echo for a long time while sockets, interfaces and processes come and go",
		Long: `Runs echo traffic through the packet engine while queues are closed and opened,
the interface goes down and up or away, and the server is killed and restarted.
Every frame, packet and wake-up must be accounted for, and nothing may grow.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "seconds", func(p experiment.Progress) (*soak.Report, error) {
				c.Progress = p
				return runSoak(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", c.Duration, "how long")
	f.DurationVar(&c.Bound, "bound", c.Bound, "longest silence of a queue in undisturbed time")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of the order of events")
	f.BoolVar(&out.json, "json", false, "print one JSON object")
	cmd.AddCommand(newChild(soakChild))
	return cmd
}
