// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchRing() *cobra.Command {
	var (
		c   = ring.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "ring",
		Short: "Measure all-reduces of long vectors around a ring and through a server, on slow lines",
		Long: `Runs workers that add long vectors on a network of namespaces whose lines have a
limited rate: around a ring and through a parameter server, as floats and in codes,
and by OpenMPI if it is installed (Debian: openmpi-bin libopenmpi-dev); then, on
slower lines, as floats with different numbers of workers. Every run checks the sums,
and that all workers have the same. Gradients are random, with the shares of small ones
that the INCEPTIONN paper has of a perceptron's. It needs root.`,
		Example: `  libra bench ring --targets --out plots
  libra bench ring --line-rate 1000 --bound 6`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*ring.Report, error) {
				c.Progress = p
				return runRing(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Values, "values", c.Values, "values of a vector")
	f.IntVar(&c.Bound, "bound", c.Bound, "bound E of the codes: an error below 2^-E")
	f.IntVar(&c.Scale, "scale", c.Scale, "scale k of the codes: gradients are multiplied by 2^k")
	f.IntVar(&c.Workers, "workers", c.Workers, "workers of the comparison")
	f.Float64Var(&c.Rate, "line-rate", c.Rate, "rate of a line in the comparison, in Mb/s")
	f.IntSliceVar(&c.Growth, "growth", c.Growth, "numbers of workers that are compared, as floats")
	f.Float64Var(&c.GrowthRate, "growth-rate", c.GrowthRate, "rate of a line then, in Mb/s")
	f.IntVar(&c.Operations, "operations", c.Operations, "operations of one measurement")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
