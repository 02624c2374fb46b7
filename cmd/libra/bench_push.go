// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchPush() *cobra.Command {
	var (
		c         = push.Defaults()
		baselines = push.Baselines()[1:]
		out       results
	)
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Measure pushes through the whole system against key-value messages over ZeroMQ",
		Long: `Runs workers, the XDP aggregator and a parameter server on a network of
namespaces, and the same pushes as key-value messages over ZeroMQ (the pattern of
ps-lite), alternately. Every run checks that the sums are exact. The baseline is
compiled if libzmq's headers are installed (Debian: libzmq3-dev).

With --scale it measures the cost of a pair for each role, and predicts the rates of 1 to 64 workers
with 1 to 8 servers, each on its own machine, and lists the assumptions. Then control groups limit
each role to a share of a CPU, and the measured rate is compared with the predicted one.`,
		Example: `  libra bench push --workers 4 --batches 4096 --baseline zeromq-table
  libra bench push --scale --batches 4096 --duration 1s --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if given := cmd.Flags().Changed; c.Scale {
				if !given("workers") {
					c.Workers = push.ScaleDefaults().Workers
				}
				if !given("baseline") {
					baselines = push.ScaleBaselines()[1:]
				}
			} else if given("line") {
				return usagef(cmd, "--line is for the study of scale: with --scale")
			}
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*push.Report, error) {
				c.Progress, c.Baselines = p, besides(push.Libra, baselines)
				return runPush(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers")
	f.IntSliceVar(&c.Batches, "batches", c.Batches, "pairs in a push")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests")
	f.Float64Var(&c.Loss, "loss", c.Loss, "share of the frames that the workers of libra-lossy lose in each direction")
	f.BoolVar(&c.Scale, "scale", false,
		fmt.Sprintf("add the study of scale; measures %d workers unless --workers gives a different number",
			push.ScaleDefaults().Workers[0]))
	f.Float64Var(&c.Line, "line", c.Line, "Gbit/s of a machine's link in the study of scale")
	baselineFlag(cmd, &baselines)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(pushChild))
	return cmd
}
