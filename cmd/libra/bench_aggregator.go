// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchAggregator() *cobra.Command {
	var (
		c                                   = aggregator.Defaults()
		tests, arithmetics, modes, backends []string
		out                                 results
	)
	cmd := &cobra.Command{
		Use:   "aggregator",
		Short: "Measure the cost and throughput of the XDP aggregator, and the negotiation of a scale",
		Long: `Measures the XDP program in the kernel's test run, with a new frame each time: the cost
of a frame and a pair by arithmetic, mode, stripes and number of hot parameters (cost);
pairs per second against the number of hot parameters, and aggregator and parameter
server together (throughput, Figures 13 and 14 of the paper); and the time of an
iteration with and without the negotiation of a scale, over UDP and over AF_XDP
(negotiation, Figure 17). It needs root, except for negotiations over UDP.
Everything takes about two minutes.`,
		Example: `  libra bench aggregator --out plots
  libra bench aggregator --measure cost --arithmetics exact,fixed --modes combine --stripes 10 --rounds 15
  libra bench aggregator --measure negotiation --backends udp --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Tests = named[aggregator.Test](tests)
			c.Arithmetics = choose(arithmetics, aggregator.Arithmetics())
			c.Modes = choose(modes, aggregator.Modes())
			c.Backends = choose(backends, aggregator.Backends())
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*aggregator.Report, error) {
				c.Progress = p
				return aggregator.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "measure", names(c.Tests), "what to measure")
	f.StringSliceVar(&arithmetics, "arithmetics", names(c.Arithmetics), "arithmetics of the jobs")
	f.StringSliceVar(&modes, "modes", names(c.Modes), "modes whose cost is measured")
	f.IntSliceVar(&c.Stripes, "stripes", c.Stripes, "stripes of the frames whose cost is measured")
	f.IntSliceVar(&c.Hot, "hot", c.Hot, "hot parameters of the jobs whose cost is measured")
	f.IntSliceVar(&c.Sweep, "sweep", c.Sweep, "numbers of hot parameters for throughput")
	f.Float64SliceVar(&c.Exponents, "exponents", c.Exponents, "exponents of the Zipf distributions of keys for throughput")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests for throughput")
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers that negotiate")
	f.StringSliceVar(&backends, "backends", names(c.Backends), "links for negotiations")
	f.IntVar(&c.Parameters, "parameters", c.Parameters, "length of the vector that is reduced after a negotiation")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", 0, fmt.Sprintf("time of one measurement (default %v; of negotiations %v)",
		aggregator.RunTime, aggregator.IterationTime))
	choices(cmd, "measure", names(aggregator.Tests())...)
	choices(cmd, "arithmetics", names(aggregator.Arithmetics())...)
	choices(cmd, "modes", names(aggregator.Modes())...)
	choices(cmd, "backends", names(aggregator.Backends())...)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}

// choose returns those of all values that a flag with [choices] names.
func choose[T any](names []string, all []T) (chosen []T) {
	for _, name := range names {
		chosen = append(chosen, all[slices.IndexFunc(all, func(v T) bool { return fmt.Sprint(v) == name })])
	}
	return chosen
}

// names returns how flags name values.
func names[T any](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = fmt.Sprint(v)
	}
	return all
}

// named returns the values with names.
func named[T ~string](names []string) []T {
	values := make([]T, len(names))
	for i, n := range names {
		values[i] = T(n)
	}
	return values
}
