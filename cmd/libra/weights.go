// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/atomicfile"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/weights"
	"github.com/libra-ina/libra/internal/workload"
)

const (
	weightsUsage = "`file` of weights: a checkpoint, or what 'libra export' wrote; of a job with several servers, the checkpoints of all, separated by commas (required)"
	taskUsage    = "classification (labels 1 and 0 or -1) or regression (labels are numbers)"
	scoredUsage  = "`file` of rows in libfm, libsvm or libffm format, plain or gzip (required)"
)

func newExport() *cobra.Command {
	var (
		from        []string
		out, format string
	)
	cmd := &cobra.Command{
		Use:   "export --weights FILE --out FILE",
		Short: "Write the weights of a checkpoint in a format of other programs",
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
					return usagef(cmd, "--out %s: its name ends with no format: give --format: %s", out, strings.Join(weights.Formats(), ", "))
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s features of model %s with %d factors\n", humanize.Comma(int64(w.Len())), what, w.Factors)
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&from, "weights", nil, weightsUsage)
	f.StringVar(&out, "out", "", "`file` to write (required)")
	f.StringVar(&format, "format", "", "csv, npz, libfm or xlearn (default: what the name of --out ends with)")
	choices(cmd, "format", weights.Formats()...)
	return cmd
}

// scored is what is scored with what.
type scored struct {
	weights    []string
	data, task string

	model workload.Model
}

func (s *scored) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.weights, "weights", nil, weightsUsage)
	f.StringVar(&s.data, "data", "", scoredUsage)
	f.StringVar(&s.task, "task", "", "what the weights are for, which only checkpoints tell: "+taskUsage+" (default: what the checkpoint tells, else classification)")
	choices(cmd, "task", workload.Tasks()...)
}

// files names the weights.
func (s *scored) files() string { return strings.Join(s.weights, ",") }

// scoredRows is how many rows are in memory at once.
const scoredRows = 1 << 16

// rows hands on the scores and labels of the rows, part by part. Where labels do not
// matter, they may be any numbers.
func (s *scored) rows(cmd *cobra.Command, labelled bool, part func(scores, labels []float32) error) error {
	if len(s.weights) == 0 || s.data == "" {
		return usagef(cmd, "--weights and --data are required")
	}
	task, err := workload.ParseTask(s.task)
	if err != nil {
		return err
	}
	w, err := weights.Load(s.weights...)
	if err != nil {
		return err
	}
	switch {
	case w.Task == nil:
		w.Task = &task
	case s.task != "" && *w.Task != task:
		return usagef(cmd, "--task %v: %s was trained for %v: leave --task out", task, s.files(), *w.Task)
	}
	if s.model, err = w.Model(); err != nil {
		return err
	}
	labels := *w.Task
	if !labelled {
		labels = workload.Regression
	}
	src, err := workload.OpenFile(s.data, labels, workload.Shard{})
	if err != nil {
		return err
	}
	defer src.Close()
	for first, more := true, true; more; first = false {
		var d *workload.Dataset
		if d, more, err = workload.LoadPart(src, scoredRows); err != nil {
			return err
		}
		if first && w.Known(d) == 0 {
			return fmt.Errorf("%s: none of its features has weights in %s, which were trained on other data, or on features with other numbers: take the weights of a training on data like this", s.data, s.files())
		}
		scores, err := workload.Scores(cmd.Context(), w, s.model, d)
		if err != nil {
			return err
		}
		if err := part(scores, d.Labels()); err != nil {
			return err
		}
	}
	return nil
}

func newPredict() *cobra.Command {
	var (
		s   scored
		out string
	)
	cmd := &cobra.Command{
		Use:   "predict --weights FILE --data FILE",
		Short: "Predict the click probability, or the number, of each row of a file",
		Long: `Writes one prediction a line, in the order of the rows: the probability of a click or, with
weights of regression, the number. Labels are not looked at, but must be there. A
feature that was never trained counts for nothing.`,
		Example: `  libra predict --weights weights.libra --data test.libfm.gz --out predictions.txt`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			predict := func(to io.Writer) error {
				lines := bufio.NewWriter(to)
				err := s.rows(cmd, false, func(scores, _ []float32) error {
					for _, score := range scores {
						line := strconv.AppendFloat(lines.AvailableBuffer(), s.model.Task().Prediction(score), 'g', 9, 64)
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
			return atomicfile.Replace(out, ".tmp", predict)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "`file` for the predictions (default: standard output)")
	return cmd
}

// Evaluation is the JSON object of 'libra evaluate'. AUC is absent if all rows have the same
// label.
type Evaluation struct {
	Rows int    `json:"rows"`
	Task string `json:"task"`
	workload.Metrics
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
			err := s.rows(cmd, true, func(sc, l []float32) error {
				scores, labels = append(scores, sc...), append(labels, l...)
				return nil
			})
			if err != nil {
				return err
			}
			task := s.model.Task()
			e := Evaluation{len(scores), task.String(), task.Measure(scores, labels)}
			if !e.Finite() {
				return fmt.Errorf("%s: the weights predict no numbers: their training diverged: train again with a lower learning rate", s.files())
			}
			if asJSON {
				return report.WriteJSON(cmd.OutOrStdout(), e)
			}
			table := [][]any{{"rows", humanize.Comma(int64(e.Rows))}}
			if task == workload.Classification && e.AUC == nil {
				table = append(table, []any{"AUC", "undefined: all rows have the same label"})
			}
			for _, m := range e.All() {
				table = append(table, []any{m.Name, fmt.Sprintf("%.6f", m.Value)})
			}
			return report.Table(cmd.OutOrStdout(), []string{"", ""}, table)
		},
	}
	s.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
