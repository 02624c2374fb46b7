// SPDX-License-Identifier: Apache-2.0

// Package weights holds the weights of a trained model without a server: it reads them from a
// checkpoint, and writes and reads formats of other programs.
//
// A feature without weights was never trained. It does not contribute to a score.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// Weights are the weights of a linear model or a factorisation machine.
type Weights struct {
	// Factors is the number of latent weights of a feature, 0 for a linear model.
	Factors int
	Bias    float32
	// Task is the task of the training; nil if it is not known: exported files do not contain it.
	Task *data.Task

	features []uint64  // ascending
	rows     []float32 // of each feature: the linear weight, then the latent weights
}

var _ train.Puller = (*Weights)(nil)

// Len returns the number of features with weights.
func (w *Weights) Len() int { return len(w.features) }

// Kind is the model's name: "lr" or "fm".
func (w *Weights) Kind() string {
	if w.Factors == 0 {
		return "lr"
	}
	return "fm"
}

// Model returns the weights' model. Without Task it is a model of classification.
func (w *Weights) Model() (train.Model, error) {
	task := data.Classification
	if w.Task != nil {
		task = *w.Task
	}
	return train.NewModel(w.Kind(), task, w.Factors, 0)
}

func (w *Weights) dim() int { return w.Factors + 1 }

func (w *Weights) row(i int) []float32 { return w.rows[i*w.dim():][:w.dim()] }

// Pull implements [train.Puller].
func (w *Weights) Pull(_ context.Context, keys []uint64, dst []float32) error {
	clear(dst)
	d, from := w.dim(), 0
	for i, key := range keys { // keys ascend
		if key == data.BiasKey {
			dst[i*d] = w.Bias
			continue
		}
		at, known := slices.BinarySearch(w.features[from:], key)
		if from += at; known {
			copy(dst[i*d:], w.row(from))
		}
	}
	return nil
}

// Known returns the number of features of d that have weights.
func (w *Weights) Known(d *data.Dataset) int {
	n, from := 0, 0
	for _, key := range d.Keys() { // keys ascend
		at, known := slices.BinarySearch(w.features[from:], key)
		if from += at; known {
			n++
		}
	}
	return n
}

// fromCheckpoints returns the weights of the checkpoints of a training.
func fromCheckpoints(paths ...string) (*Weights, error) {
	store, attachment, err := ReadCheckpoints(paths...)
	if err != nil {
		return nil, err
	}
	path, cfg := strings.Join(paths, ","), store.Config()
	factors, task, err := modelOf(attachment)
	if err != nil {
		return nil, fmt.Errorf("%s: the checkpoint does not tell its model: %w", path, err)
	}
	if cfg.Dim != factors+1 {
		return nil, fmt.Errorf("%s: the checkpoint is of a model with %d factors, but its rows have %d floats instead of %d: use a checkpoint that 'libra ps' or 'libra demo' wrote", path, factors, cfg.Dim, factors+1)
	}
	w := Of(store)
	w.Task = &task
	return w, nil
}

// Of returns a store's weights as of its last commit. If its rows have one float, they are those of
// a linear model, otherwise of a factorisation machine.
func Of(store *ps.Store) *Weights {
	dim := store.Config().Dim
	w := &Weights{Factors: dim - 1, features: make([]uint64, 0, store.Len()), rows: make([]float32, 0, store.Len()*dim)}
	for key, row := range store.Rows() {
		if key == data.BiasKey {
			w.Bias = row[0]
			continue
		}
		w.features = append(w.features, key)
		w.rows = append(w.rows, row...)
	}
	return w
}

// Linear returns a linear model without an intercept: a weight for each of the features, which
// ascend.
func Linear(features []uint64, linear []float32) *Weights {
	return &Weights{features: features, rows: linear}
}

// modelOf returns the number of factors and the task of the model in a checkpoint's attachment
// (docs/checkpoint.md).
func modelOf(attachment []byte) (factors int, task data.Task, err error) {
	var saved struct{ Agreed map[string]string }
	if err := json.Unmarshal(attachment, &saved); err != nil {
		return 0, 0, errors.New("its attachment is not that of a training")
	}
	if task, err = data.ParseTask(saved.Agreed["model.task"]); err != nil {
		return 0, 0, fmt.Errorf("model.task is %q, and this program knows %s", saved.Agreed["model.task"],
			strings.Join(data.Tasks(), " and "))
	}
	switch kind := saved.Agreed["model.kind"]; kind {
	case "lr":
		return 0, task, nil
	case "fm":
		n, err := strconv.Atoi(saved.Agreed["model.factors"])
		if err != nil || n < 1 || n > train.MaxFactors {
			return 0, 0, fmt.Errorf("model.factors is %q", saved.Agreed["model.factors"])
		}
		return n, task, nil
	default:
		return 0, 0, fmt.Errorf("model.kind is %q, and this program knows fm and lr", kind)
	}
}
