package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/link"
)

func newBenchAggregator() *cobra.Command {
	var (
		c                                   aggregator.Config
		tests, arithmetics, modes, backends []string
		out                                 results
	)
	cmd := &cobra.Command{
		Use:   "aggregator",
		Short: "Measure what the XDP aggregator costs, its throughput, and a scale's negotiation",
		Long: `Measures the XDP program by the kernel's test run, a new frame each time: what
a frame and a pair cost by arithmetic, mode, stripes and number of hot parameters
(cost); pairs a second against the number of hot parameters, and aggregator and
parameter server together (throughput, Figures 13 and 14 of the paper); and what
an iteration takes with and without the negotiation of a scale, over UDP and over
AF_XDP (negotiation, Figure 17). It needs root, but for negotiations over UDP.
Everything takes about two minutes.`,
		Example: `  libra bench aggregator --out plots
  libra bench aggregator --tests cost --arithmetics exact,fixed --modes combine --stripes 10 --rounds 15
  libra bench aggregator --tests negotiation --backends udp --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for _, t := range tests {
				c.Tests = append(c.Tests, aggregator.Test(t))
			}
			if c.Arithmetics, err = parseAll(arithmetics, parseAs(aggregator.Arithmetics())); err != nil {
				return usagef(cmd, "--arithmetics: %w", err)
			}
			if c.Modes, err = parseAll(modes, parseAs(aggregator.Modes())); err != nil {
				return usagef(cmd, "--modes: %w", err)
			}
			if c.Backends, err = parseAll(backends, link.ParseBackend); err != nil {
				return usagef(cmd, "--backends: %w", err)
			}
			progress := newSteps(cmd.ErrOrStderr(), "measurements")
			c.Progress = func(s aggregator.Step) { progress.step(s.Done, s.Total, s.What) }
			r, err := aggregator.Run(cmd.Context(), c)
			progress.finish()
			if r != nil {
				err = errors.Join(err, out.write(cmd.OutOrStdout(), r, r.WriteTable))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "tests", nil, "cost, throughput, negotiation (default all)")
	f.StringSliceVar(&arithmetics, "arithmetics", nil, "exact, lut, fixed (default all)")
	f.StringSliceVar(&modes, "modes", nil, "modes whose cost is measured: combine, fetchadd, sync (default all)")
	f.IntSliceVar(&c.Stripes, "stripes", nil, "stripes of the frames whose cost is measured (default 1,2,5,10)")
	f.IntSliceVar(&c.Hot, "hot", nil, "hot parameters of the jobs whose cost is measured (default 1000,30000,65536)")
	f.IntSliceVar(&c.Sweep, "sweep", nil, "numbers of hot parameters for throughput (default ten from 1000 to 65536)")
	f.Float64SliceVar(&c.Exponents, "exponents", nil, "exponents of the Zipf distributions of keys for throughput (default 0.83,0.97)")
	f.Lookup("exponents").DefValue = "" // it is in the text, as the others' are
	f.IntSliceVar(&c.Workers, "workers", nil, "numbers of workers that negotiate (default 2,4,8)")
	f.StringSliceVar(&backends, "backends", nil, "links for negotiations: udp, afxdp (default both)")
	f.IntVar(&c.Parameters, "parameters", 0, "length of the vector that is reduced after a negotiation (default 30000)")
	f.IntVar(&c.Rounds, "rounds", 0, "interleaved rounds (default 5)")
	f.DurationVar(&c.Duration, "duration", 0, "time of one measurement (default 15ms; of negotiations 200ms)")
	out.flags(cmd)
	return cmd
}

// parseAll parses the values of a flag.
func parseAll[T any](names []string, parse func(string) (T, error)) (values []T, err error) {
	for _, n := range names {
		v, err := parse(n)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// parseAs returns a parser of the names of values.
func parseAs[T plane.Arithmetic | plane.Mode](all []T) func(string) (T, error) {
	return func(name string) (T, error) {
		for _, v := range all {
			if fmt.Sprint(v) == name {
				return v, nil
			}
		}
		return 0, fmt.Errorf("%q is none of %v", name, all)
	}
}
