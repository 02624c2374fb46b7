// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
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

func (s *scored) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.weights, "weights", nil, weightsUsage)
	f.StringVar(&s.data, "data", "", scoredUsage)
	f.StringVar(&s.task, "task", "",
		settings.Task.Help("")+"; only checkpoints record it (default: the checkpoint's, else "+settings.Task.Default+")")
	choices(cmd, "task", data.Tasks()...)
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
		return usagef(cmd, "--task %v: %s was trained for %v: leave --task out", task, s.files(), *w.Task)
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
	for first, more := true, true; more; first = false {
		var d *data.Dataset
		if d, more, err = data.LoadPart(src, scoredRows); err != nil {
			return err
		}
		if first && w.Known(d) == 0 {
			return fmt.Errorf("%s: none of its features has weights in %s, which were trained on other data, or on features with other numbers: take the weights of a training on data like this", s.data, s.files())
		}
		scores, err := train.Scores(cmd.Context(), w, s.model, d)
		if err != nil {
			return err
		}
		if err := part(scores, d.Labels()); err != nil {
			return err
		}
	}
	return nil
}
