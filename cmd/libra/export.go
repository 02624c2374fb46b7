// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/train/weights"
)

const (
	weightsUsage = "`file` of weights: a checkpoint, or output of 'libra export'; for a job with several servers, the checkpoints of all, separated by commas (required)"
	scoredUsage  = "`file` of rows in libfm, libsvm or libffm format, plain or gzip (required)"
)

func newExport() *cobra.Command {
	var (
		from        []string
		out, format string
	)
	cmd := &cobra.Command{
		Use:   "export --weights FILE --out FILE",
		Short: "Write the weights of a checkpoint in a different program's format",
		Long: `Reads the weights of a trained model, from a checkpoint or an exported file, and
writes them as csv, as a NumPy archive (npz), or as the text models of libFM and
xLearn. docs/weights.md describes the formats, and has a program that reads one.`,
		Example: `  libra export --weights weights.libra --out weights.csv
  libra export --weights weights.libra --out weights.npz
  libra export --weights weights-0.libra,weights-1.libra --out weights.csv
  libra export --weights weights.libra --out model.txt --format libfm`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(from) == 0 || out == "" {
				return usagef(cmd, "--weights and --out are required")
			}
			if format == "" {
				if format = weights.FormatOf(out); format == "" {
					return usagef(cmd, "--out %s: its name ends with no format: give --format: %s", out,
						strings.Join(weights.Formats(), ", "))
				}
			}
			if err := checkOutput(cmd, out, from...); err != nil {
				return err
			}
			w, err := weights.Load(from...)
			if err != nil {
				return err
			}
			if err := w.Save(out, format); err != nil {
				return err
			}
			what := w.Kind()
			if w.Task != nil {
				what += " for " + w.Task.String()
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s features of model %s with %d factors\n",
				humanize.Comma(int64(w.Len())), what, w.Factors)
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&from, "weights", nil, weightsUsage)
	f.StringVar(&out, "out", "", "`file` to write (required)")
	f.StringVar(&format, "format", "", "csv, npz, libfm or xlearn (default: the extension of --out)")
	choices(cmd, "format", weights.Formats()...)
	return cmd
}
