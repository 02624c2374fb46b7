// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
	"github.com/libra-ina/libra/train/weights"
)

// scored is what is scored with what.
type scored struct {
	weights    []string
	data, task string

	model train.Model
}

func (s *scored) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.weights, "weights", nil, weightsUsage)
	f.StringVar(&s.data, "data", "", scoredUsage)
	f.StringVar(&s.task, "task", "",
		settings.Task.Help("")+"; only checkpoints record it (default: the checkpoint's, else "+settings.Task.Default+")")
	choices(cmd, "task", data.Tasks()...)
}

// fileNames names the weights.
func (s *scored) fileNames() string { return strings.Join(s.weights, ",") }

// scoredRows is how many rows are in memory at once.
const scoredRows = 1 << 16

// scoreRows hands on the scores and labels of the rows, part by part. Where labels do not
// matter, they may be any numbers.
func (s *scored) scoreRows(cmd *cobra.Command, labelled bool, part func(scores, labels []float32) error) error {
	if len(s.weights) == 0 || s.data == "" {
		return usagef(cmd, "--weights and --data are required")
	}
	task, err := data.ParseTask(s.task)
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
		return usagef(cmd, "--task %v: %s was trained for %v: leave --task out", task, s.fileNames(), *w.Task)
	}
	if s.model, err = w.Model(); err != nil {
		return err
	}
	labels := *w.Task
	if !labelled {
		labels = data.Regression
	}
	src, err := data.OpenFile(s.data, labels, data.Shard{})
	if err != nil {
		return err
	}
	defer src.Close()
	features, known := 0, 0
	for more := true; more; {
		var d *data.Dataset
		if d, more, err = data.LoadPart(src, scoredRows); err != nil {
			return err
		}
		features, known = features+len(d.Keys()), known+w.Known(d)
		scores, err := train.Scores(cmd.Context(), w, s.model, d)
		if err != nil {
			return err
		}
		if err := part(scores, d.Labels()); err != nil {
			return err
		}
	}
	return s.reportUnknown(features, known, labelled)
}

// reportUnknown reports that rows have no features with weights. Their predictions are right if the
// features are new, as those of unseen users are, but all the same; and no measure of such weights
// is.
func (s *scored) reportUnknown(features, known int, labelled bool) error {
	switch {
	case known > 0:
		return nil
	case features == 0:
		slog.Warn("no row has a feature: every prediction is that of the intercept alone", "data", s.data)
		return nil
	case !labelled:
		slog.Warn("none of the features has weights: every prediction is that of the intercept alone; if the features are not new, take the weights of a training on data like this",
			"data", s.data, "weights", s.fileNames())
		return nil
	}
	return fmt.Errorf("%s: none of its features has weights in %s, which were trained on other data, or on features with other numbers: take the weights of a training on data like this", s.data, s.fileNames())
}
