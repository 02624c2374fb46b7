// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train/data"
)

// Evaluation is the JSON object of 'libra evaluate'. AUC is absent if all rows have the same
// label.
type Evaluation struct {
	Rows int    `json:"rows"`
	Task string `json:"task"`
	data.Metrics
}

func newEvaluate() *cobra.Command {
	var (
		s      scored
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "evaluate --weights FILE --data FILE",
		Short: "Measure how well weights predict the labels of a file",
		Long: `Scores the rows of a file and prints AUC and log-loss or, with weights of regression, RMSE
(root of the mean squared error) and MAE (mean absolute error).`,
		Example: `  libra evaluate --weights weights.libra --data test.libfm.gz`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var scores, labels []float32
			err := s.scoreRows(cmd, true, func(sc, l []float32) error {
				scores, labels = append(scores, sc...), append(labels, l...)
				return nil
			})
			if err != nil {
				return err
			}
			task := s.model.Task()
			e := Evaluation{len(scores), task.String(), task.Measure(scores, labels)}
			if !e.Finite() {
				return noNumbers(&s, scores)
			}
			if asJSON {
				return report.WriteJSON(cmd.OutOrStdout(), e)
			}
			table := [][]any{{"rows", humanize.Comma(int64(e.Rows))}}
			if task == data.Classification && e.AUC == nil {
				table = append(table, []any{"AUC", "undefined: all rows have the same label"})
			}
			for _, m := range e.All() {
				table = append(table, []any{m.Name, fmt.Sprintf("%.6f", m.Value)})
			}
			return report.Table(cmd.OutOrStdout(), []string{"", ""}, table)
		},
	}
	s.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// noNumbers says for which row there is no number, and why that may be.
func noNumbers(s *scored, scores []float32) error {
	row := slices.IndexFunc(scores, func(score float32) bool { return math.IsNaN(float64(score - score)) })
	return noNumber(s, max(row, 0)) // a sum of them may be too large
}

// noNumber is noNumbers for a known row, counted from 0.
func noNumber(s *scored, row int) error {
	return fmt.Errorf("%s: the weights predict no numbers, first for row %d of %s: either their training diverged, then train again with a lower learning rate; or its values are far larger than those of the training, then scale them alike",
		s.fileNames(), row+1, s.data)
}
