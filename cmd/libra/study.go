// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/arithmetic"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bench/hotset"
)

func newHotsetStudy() *cobra.Command {
	var (
		c   = hotset.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure sampling precision, recirculations and lane fill, beside the paper's figures",
		Long: `Prints how well sampling finds the hot parameters (the paper's §5.3), how many
packets and recirculations each placement and packing takes (§5.4), and how many
lanes stay empty. Logs are given by --data and --text; two synthetic ones with
the paper's skew are always studied.`,
		Example: "  libra hotset study --data frappe.libfm.gz --text wikitext2.txt.gz --out plots",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.prepare(); err != nil {
				return err
			}
			report, err := hotset.Run(c)
			if err != nil {
				return misuse(cmd, err)
			}
			return out.write(cmd.OutOrStdout(), report)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.LibFM, "data", nil, "logs in libfm format, plain or gzip: features are the parameters")
	f.StringSliceVar(&c.Text, "text", nil, "tokenised texts, plain or gzip: words are the parameters, lines the rows")
	f.IntVar(&c.Samples, "rounds", c.Samples, "samples that are drawn at each rate")
	f.IntSliceVar(&c.Steps, "steps", c.Steps, "step sizes of the trade-off rule")
	f.Float64SliceVar(&c.Rates, "rates", c.Rates, "sampling rates")
	f.IntVar(&c.SyntheticRows, "rows", c.SyntheticRows, "rows of a synthetic log")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of samples, synthetic logs and the random placement")
	out.flags(cmd)
	return cmd
}

func newLut() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lut",
		Short: "Study the arithmetics: table lookup, scaled int32, float32, exact",
	}
	cmd.AddCommand(newLutStudy())
	return cmd
}

func newLutStudy() *cobra.Command {
	var (
		c     = arithmetic.Defaults()
		tests []string
		out   results
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure the precision of sums, and the memory and the pace of each arithmetic, beside the paper's figures",
		Long: `Prints the precision of pairwise sums on gradients of a real training and on
uniform numbers (the paper's Table 2), the error of sums of 10 to 1,000,000 terms,
and the memory that a switch needs (§5.7): numbers. Then it measures aggregation
throughput against the number of hot parameters (Figures 13 and 14): throughput;
and the delay of a scale's negotiation (Figure 17): negotiation. These are parts
of 'libra bench aggregator', which has more options for them. They take about two
minutes; what needs root is left out, with a note, without root.`,
		Example: `  libra lut study --data frappe.libfm.gz --out plots
  libra lut study --measure numbers --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p harness.Progress) (*arithmetic.Study, error) {
				return arithmetic.RunStudy(cmd.Context(), c, tests, p)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "measure", arithmetic.Parts(), "what to study")
	choices(cmd, "measure", arithmetic.Parts()...)
	f.StringVar(&c.Data, "data", "", "`file` in libfm format to train on for gradients (default: a synthetic log)")
	f.IntVar(&c.Pairs, "pairs", c.Pairs, "pairs of each data set")
	f.IntVar(&c.Trials, "rounds", c.Trials, "long sums that are made of each length")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of samples, pairs and random numbers")
	out.flags(cmd)
	return cmd
}
