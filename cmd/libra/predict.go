// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/file"
)

func newPredict() *cobra.Command {
	var (
		s   scored
		out string
	)
	cmd := &cobra.Command{
		Use:   "predict --weights FILE --data FILE",
		Short: "Predict the click probability, or the number, of each row of a file",
		Long: `Writes one prediction per line, in the order of the rows: the probability of a click or, with
weights of regression, the number. Labels are ignored, but must be present. A feature
that was never trained has no effect: a row of such features alone is predicted by the
intercept, with a warning if there are only such rows.`,
		Example: `  libra predict --weights weights.libra --data test.libfm.gz --out predictions.txt`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			predict := func(to io.Writer) error {
				lines, row := bufio.NewWriter(to), 0
				err := s.scoreRows(cmd, false, func(scores, _ []float32) error {
					for _, score := range scores {
						prediction := s.model.Task().Prediction(score)
						if math.IsNaN(prediction - prediction) {
							return noNumber(&s, row)
						}
						row++
						line := strconv.AppendFloat(lines.AvailableBuffer(), prediction, 'g', 9, 64)
						if _, err := lines.Write(append(line, '\n')); err != nil {
							return err
						}
					}
					return nil
				})
				if flushed := lines.Flush(); err == nil {
					err = flushed
				}
				return err
			}
			if out == "" {
				return predict(cmd.OutOrStdout())
			}
			if err := checkOutput(cmd, out, append(s.weights, s.data)...); err != nil {
				return err
			}
			return file.Replace(out, ".tmp", predict)
		},
	}
	s.addFlags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "`file` for the predictions (default: standard output)")
	return cmd
}
