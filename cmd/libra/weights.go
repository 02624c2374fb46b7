package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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
	weightsUsage = "`file` of weights: a checkpoint, or what 'libra export' wrote (required)"
	scoredUsage  = "`file` of rows in libfm, libsvm or libffm format, plain or gzip (required)"
)

func newExport() *cobra.Command {
	var from, out, format string
	cmd := &cobra.Command{
		Use:   "export --weights FILE --out FILE",
		Short: "Write the weights of a checkpoint in a format of other programs",
		Long: `Reads the weights of a trained model, from a checkpoint or an exported file, and
writes them as csv, as a NumPy archive (npz), or as the text models of libFM and
xLearn. docs/weights.md describes the formats, and has a program that reads one.`,
		Example: `  libra export --weights weights.libra --out weights.csv
  libra export --weights weights.libra --out weights.npz
  libra export --weights weights.libra --out model.txt --format libfm`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || out == "" {
				return usagef(cmd, "--weights and --out are required")
			}
			if format == "" {
				if format = weights.FormatOf(out); format == "" {
					return usagef(cmd, "--out %s: its name ends with no format: give --format: %s", out, strings.Join(weights.Formats(), ", "))
				}
			}
			w, err := weights.Load(from)
			if err != nil {
				return err
			}
			if err := w.Save(out, format); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s features of model %s with %d factors\n", humanize.Comma(int64(w.Len())), w.Kind(), w.Factors)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "weights", "", weightsUsage)
	f.StringVar(&out, "out", "", "`file` to write (required)")
	f.StringVar(&format, "format", "", "csv, npz, libfm or xlearn (default: what the name of --out ends with)")
	choices(cmd, "format", weights.Formats()...)
	return cmd
}

func newPredict() *cobra.Command {
	var from, data, out string
	cmd := &cobra.Command{
		Use:   "predict --weights FILE --data FILE",
		Short: "Predict the click probability of each row of a file",
		Long: `Writes one probability a line, in the order of the rows. Their labels are not looked
at, but must be there. A feature that was never trained counts for nothing.`,
		Example: `  libra predict --weights weights.libra --data test.libfm.gz --out predictions.txt`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || data == "" {
				return usagef(cmd, "--weights and --data are required")
			}
			predict := func(to io.Writer) error {
				lines := bufio.NewWriter(to)
				err := score(cmd.Context(), from, data, func(scores []float32, _ []bool) error {
					for _, s := range scores {
						line := strconv.AppendFloat(lines.AvailableBuffer(), workload.Probability(s), 'g', 9, 64)
						if _, err := lines.Write(append(line, '\n')); err != nil {
							return err
						}
					}
					return nil
				})
				return errors.Join(err, lines.Flush())
			}
			if out == "" {
				return predict(cmd.OutOrStdout())
			}
			return atomicfile.Replace(out, ".tmp", predict)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "weights", "", weightsUsage)
	f.StringVar(&data, "data", "", scoredUsage)
	f.StringVar(&out, "out", "", "`file` for the probabilities (default: standard output)")
	return cmd
}

// Evaluation is the JSON object of 'libra evaluate'.
type Evaluation struct {
	Rows    int      `json:"rows"`
	AUC     *float64 `json:"auc,omitempty"` // absent if all rows have the same label
	LogLoss float64  `json:"log_loss"`
}

func newEvaluate() *cobra.Command {
	var (
		from, data string
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:     "evaluate --weights FILE --data FILE",
		Short:   "Measure how well weights predict the labels of a file",
		Long:    `Scores the rows of a file and prints AUC and log-loss.`,
		Example: `  libra evaluate --weights weights.libra --data test.libfm.gz`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || data == "" {
				return usagef(cmd, "--weights and --data are required")
			}
			var (
				scores []float32
				labels []bool
			)
			err := score(cmd.Context(), from, data, func(s []float32, l []bool) error {
				scores, labels = append(scores, s...), append(labels, l...)
				return nil
			})
			if err != nil {
				return err
			}
			e := Evaluation{Rows: len(scores), LogLoss: workload.LogLoss(scores, labels)}
			area := "undefined: all rows have the same label"
			if auc := workload.AUC(scores, labels); !math.IsNaN(auc) {
				e.AUC, area = &auc, fmt.Sprintf("%.6f", auc)
			}
			if asJSON {
				return report.WriteJSON(cmd.OutOrStdout(), e)
			}
			return report.Table(cmd.OutOrStdout(), []string{"", ""}, [][]any{
				{"rows", humanize.Comma(int64(e.Rows))}, {"AUC", area}, {"log-loss", fmt.Sprintf("%.6f", e.LogLoss)},
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "weights", "", weightsUsage)
	f.StringVar(&data, "data", "", scoredUsage)
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// scoredRows is how many rows are in memory at once.
const scoredRows = 1 << 16

// score hands on the scores and labels of the rows in a file, part by part.
func score(ctx context.Context, from, data string, part func(scores []float32, labels []bool) error) error {
	src, err := workload.OpenFile(data, workload.Shard{})
	if err != nil {
		return err
	}
	defer src.Close()
	w, err := weights.Load(from)
	if err != nil {
		return err
	}
	model, err := w.Model()
	if err != nil {
		return err
	}
	for first, more := true, true; more; first = false {
		var d *workload.Dataset
		if d, more, err = workload.LoadPart(src, scoredRows); err != nil {
			return err
		}
		if first && w.Known(d) == 0 {
			return fmt.Errorf("%s: none of its features has weights in %s, which were trained on other data, or on features with other numbers: take the weights of a training on data like this", data, from)
		}
		scores, err := workload.Scores(ctx, w, model, d)
		if err != nil {
			return err
		}
		if err := part(scores, d.Labels()); err != nil {
			return err
		}
	}
	return nil
}
