// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// Model returns the model that a configuration describes.
func Model(c cluster.Model) (train.Model, error) {
	task, err := data.ParseTask(c.Task)
	if err != nil {
		return nil, err
	}
	return train.NewModel(c.Kind, task, c.Factors, float32(c.L2))
}

// StoreConfig returns the configuration of the parameter server's store.
func StoreConfig(c *cluster.Config) (ps.Config, error) {
	model, err := Model(c.Model)
	if err != nil {
		return ps.Config{}, err
	}
	method, err := ps.ParseMethod(c.Model.Optimizer)
	if err != nil {
		return ps.Config{}, err
	}
	return ps.Config{
		Dim: model.Dim(),
		Exp: c.Job.Config().StoreExp(),
		Optimizer: ps.Optimizer{
			Method:             method,
			LearningRate:       float32(c.Model.LearningRate),
			InitialAccumulator: float32(c.Model.InitialAccumulator),
		},
		Init:    ps.Init{Seed: c.Model.Seed, Scale: float32(c.Model.InitScale)},
		MaxRows: c.Server.MaxRows,
	}, nil
}

// TrainConfig returns the configuration of a worker's training loop.
func TrainConfig(c *cluster.Config) (train.Config, error) {
	model, err := Model(c.Model)
	if err != nil {
		return train.Config{}, err
	}
	return train.Config{
		Model:  model,
		Epochs: c.Model.Epochs,
		Batch:  c.Model.Batch,
		Sync:   c.Job.Sync,
		Seed:   c.Model.Seed,
		Window: c.Data.Window,
	}, nil
}

// Coding returns what the codec of a job does to the gradients of a push, for [train.Config]; nil
// if it has none.
func Coding(c *cluster.Config, hot *packer.HotSet) (func(keys []uint64, grads []float32), error) {
	config := c.Codec.Config()
	if config == (codec.Config{}) {
		return nil, nil
	}
	coder, err := codec.New(config)
	return func(keys []uint64, grads []float32) { packer.CodeCold(coder, hot, keys, grads) }, err
}

// OpenSource opens a shard of the training rows.
func OpenSource(c *cluster.Config, shard data.Shard) (data.Source, error) {
	task, err := data.ParseTask(c.Model.Task)
	if err != nil {
		return nil, err
	}
	d := c.Data
	switch {
	case d.Train != "":
		return data.OpenFile(d.Train, task, shard)
	case d.Synthetic == nil:
		return nil, errors.New("data: no training rows are configured: give data.train (a file) or data.synthetic, " +
			"or let processes train through 'libra agent'")
	}
	return data.NewSynthetic(data.SyntheticConfig{
		Task: task, First: d.Synthetic.First, Rows: d.Synthetic.Rows, Seed: d.Synthetic.Seed,
		HotShare: d.Synthetic.HotShare, Hot: d.Synthetic.Hot,
	}, shard)
}

// LoadTest reads the held-out rows, which must have both labels of classification.
func LoadTest(c *cluster.Config) (*data.Dataset, error) {
	held, name := &cluster.Config{Model: c.Model, Data: cluster.Data{Train: c.Data.Test}}, c.Data.Test
	if name == "" {
		beyond := *c.Data.Synthetic
		beyond.First, beyond.Rows = beyond.First+beyond.Rows, beyond.Test
		held.Data.Synthetic, name = &beyond, "of the synthetic log"
	}
	src, err := OpenSource(held, data.Shard{})
	if err != nil {
		return nil, fmt.Errorf("held-out rows (data.test, or --test): %w", err)
	}
	defer src.Close()
	d, err := data.Load(src)
	if err != nil {
		return nil, fmt.Errorf("held-out rows (data.test, or --test): %w", err)
	}
	if c.Model.Task == data.Regression.String() {
		return d, nil
	}
	if labels := d.Labels(); !slices.Contains(labels, 1) || !slices.Contains(labels, 0) {
		return nil, fmt.Errorf("held-out rows %s (data.test, or --test): all %d have the same label, so that they have no AUC: take rows with both labels", name, len(labels))
	}
	return d, nil
}

// agreement returns the values that a worker must have in common with the others, including its
// training data.
func agreement(c *cluster.Config) (map[string]string, error) {
	a := c.Agreement()
	data, err := c.Data.Fingerprint()
	if err != nil {
		return nil, err
	}
	a[cluster.DataField] = data
	return a, nil
}
