// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchCodec() *cobra.Command {
	var (
		c   = codec.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "codec",
		Short: "Measure the codec on one core against zfp, zstd and snappy",
		Long: `Shortens and restores gradients on one core, alternately by package codec with several bounds,
by its plain Go, by zfp with the same bounds, and by zstd and snappy, which lose nothing. It
prints the rates, the ratio of lengths, the rate of a line above which coding does not pay, and
what it gains on some lines. Every value is compared. Gradients are random, with the shares of
small ones that the INCEPTIONN paper has of a perceptron's. zfp needs a C compiler and its
library; without them, it is left out, which the report says.`,
		Example: `  libra bench codec --targets
  libra bench codec --bound 10 --values 100000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*codec.Report, error) {
				c.Progress = p
				return codec.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Values, "values", c.Values, "gradients to shorten at once")
	f.IntSliceVar(&c.Bounds, "bound", c.Bounds, "bounds E of the codes: errors below 2^-E")
	f.Float64SliceVar(&c.Lines, "line-rate", c.Lines, "rates of lines, in Gb/s, of which it is said what coding gains")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
