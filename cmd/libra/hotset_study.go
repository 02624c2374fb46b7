// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/study/hotset"
)

func newHotsetStudy() *cobra.Command {
	var (
		c   = hotset.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure sampling precision, recirculations and lane fill, next to the paper's figures",
		Long: `Prints how well sampling finds the hot parameters (the paper's §5.3), how many
packets and recirculations each placement and packing takes (§5.4), and how many
lanes stay empty. Logs are given by --data and --text; two synthetic ones with
the paper's skew are always studied.`,
		Example: "  libra hotset study --data frappe.libfm.gz --text wikitext2.txt.gz --out plots",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			leave, err := out.makeFolder()
			if err != nil {
				return err
			}
			defer leave()
			r, err := hotset.Run(c)
			if err != nil {
				return misuse(cmd, err)
			}
			return out.writeReport(cmd.OutOrStdout(), r)
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
	out.addFlags(cmd)
	return cmd
}
