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
		Short: "Measure the codec on one core against zstd and snappy",
		Long: `Shortens and restores gradients on one core, by package codec with several bounds and
alternately by zstd and snappy, which lose nothing, and prints the rates, the ratio of
lengths, and the rate of a line above which coding does not pay. Every value is compared.
Gradients are random, with the shares of small ones that the INCEPTIONN paper has of a
perceptron's.`,
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
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
