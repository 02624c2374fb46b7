package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/hotset"
)

func newHotsetStudy() *cobra.Command {
	var (
		c      hotset.Config
		out    string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure sampling precision, recirculations and lane fill, beside the paper's figures",
		Long: `Prints how well sampling finds the hot parameters (libra.txt §5.3), how many
packets and recirculations each placement and packing takes (§5.4), and how many
lanes stay empty. Logs are given by --data and --text; two synthetic ones with
the paper's skew are always studied.`,
		Example: "  libra hotset study --data frappe.libfm.gz --text wikitext2.txt.gz --out plots",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := hotset.Run(c)
			if err != nil {
				return err
			}
			var plots []string
			if out != "" {
				if plots, err = report.WritePlots(out); err != nil {
					return err
				}
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(report)
			}
			if err := report.WriteTables(cmd.OutOrStdout()); err != nil {
				return err
			}
			for _, p := range plots {
				fmt.Fprintln(cmd.OutOrStdout(), "plot:", p)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.LibFM, "data", nil, "logs in libfm format, plain or gzip: features are the parameters")
	f.StringSliceVar(&c.Text, "text", nil, "tokenised texts, plain or gzip: words are the parameters, lines the rows")
	f.StringVar(&out, "out", "", "`folder` for SVG plots (default: no plots)")
	f.IntVar(&c.Samples, "samples", 0, "samples to draw at each rate (default 9)")
	f.IntSliceVar(&c.Steps, "steps", nil, "step sizes of the trade-off rule (default 1000,100,10)")
	f.Float64SliceVar(&c.Rates, "rates", nil, "sampling rates (default 0.01,0.02,0.04,0.08,0.16)")
	f.IntVar(&c.SyntheticRows, "synthetic-rows", 0, "rows of a synthetic log (default 200000)")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of samples, synthetic logs and the random placement")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
