// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/cluster/plan"
)

func newPlan() *cobra.Command {
	var (
		config string
		o      = plan.Defaults()
		out    results
	)
	cmd := &cobra.Command{
		Use:   "plan --config FILE",
		Short: "Plan which of several switches sums which part of a job's hot set",
		Long: `Reads a cluster file with its switches and links, and the hot set that it names, and
prints a plan: the switches that hold each part of the hot set, where each worker sends
it, the bytes on each link, how full each switch is, and how far the plan is above the
lower bound of all plans. It changes nothing; a job whose job.plan names a file of
'libra plan --json' follows it, and a running one if 'libra plan apply' tells it.

The objective links is bytes times links, of pushes and of harvests; paper is that of the
GOAT paper's algorithm, which leaves the links between workers and switches out. With
room, as much of the hot set is at switches as these have room for, as with job.plan: auto.`,
		Example: `  libra plan --config cluster.yaml
  libra plan --config cluster.yaml --pushes 20 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usagef(cmd, "--config is required")
			}
			if o.Parts < 1 || o.Parts > plan.MaxParts {
				return usagef(cmd, "--parts %d: it must be 1 to %d", o.Parts, plan.MaxParts)
			}
			if o.Objective != plan.Paper && cmd.Flags().Changed("seed") {
				return usagef(cmd, "--seed %d: only the objective %s draws: leave it out, or choose that", o.Seed, plan.Paper)
			}
			c, err := cluster.Read(config)
			if err != nil {
				return err
			}
			hot, err := node.LoadHotSet(c)
			if err != nil {
				return fmt.Errorf("%s: %w", config, err)
			}
			r, err := plan.Make(c, hot, o)
			if err != nil {
				return fmt.Errorf("%s: %w", config, err)
			}
			return out.writeReport(cmd.OutOrStdout(), r)
		},
	}
	cmd.AddCommand(newPlanApply())
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "cluster configuration `file`")
	f.StringVar(&o.Objective, "objective", o.Objective, "what to minimise")
	choices(cmd, "objective", plan.Links, plan.Paper, plan.Room)
	f.IntVar(&o.Parts, "parts", o.Parts, fmt.Sprintf("parts of the hot set, at most %d: ranges of equally many rows", plan.MaxParts))
	f.IntVar(&o.Batch, "batch", 0, "rows of the hot set's sample that a push stands for (default: the file's model.batch × job.accumulate; 1 for a set of 'libra hotset learn', which counts pushes)")
	f.IntVar(&o.Pushes, "pushes", o.Pushes, "pushes of each worker from one harvest to the next")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "seed of the rounding, with the objective paper")
	f.StringVar(&o.Without, "without", "", "`name` of a switch that gets no parts")
	f.BoolVar(&out.json, "json", false, "print one JSON object")
	return cmd
}
