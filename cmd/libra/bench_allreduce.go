// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/allreduce"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchAllreduce() *cobra.Command {
	var (
		c         = allreduce.Defaults()
		baselines = allreduce.Baselines()
		out       results
	)
	cmd := &cobra.Command{
		Use:   "allreduce",
		Short: "Measure all-reduces of a few values against OpenMPI and Gloo",
		Long: `Runs workers that add small vectors by the XDP aggregator, on a network of
namespaces, and alternately the same by whole-vector reduces, over UDP sockets, with
lost frames, by OpenMPI over TCP and shared memory, and by Gloo. Every run checks the
sums. The programs for OpenMPI and Gloo are compiled if these are installed (Debian:
openmpi-bin libopenmpi-dev, g++ libgloo-dev). It needs root.`,
		Example: `  libra bench allreduce --out plots
  libra bench allreduce --workers 4 --baseline openmpi --targets`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*allreduce.Report, error) {
				c.Progress, c.Baselines = p, besides(allreduce.Libra, baselines)
				return runAllreduce(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers")
	f.IntVar(&c.Width, "width", c.Width, "values of an operation")
	f.IntVar(&c.InFlight, "in-flight", c.InFlight, "operations in flight when the rate is measured")
	f.IntVar(&c.Operations, "operations", c.Operations, "operations of one measurement")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.Float64Var(&c.Loss, "loss", c.Loss, "share of the frames that the links of libra-lossy lose in each direction")
	baselineFlag(cmd, &baselines)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(allreduceChild))
	return cmd
}
