// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/weights"
)

// The baselines of a demo.
const (
	OneProcess = "one-process" // the same training in one process
	ServerOnly = "server-only" // the same cluster, with all gradients sent to the server
)

// Baselines lists the baselines of a demo.
func Baselines() []string { return []string{OneProcess, ServerOnly} }

// Outcome is the cost and the result of one way to train.
type Outcome struct {
	data.Metrics             // of held-out rows
	Seconds          float64 `json:"training_s"` // of training
	SamplesPerSecond float64 `json:"samples_per_s"`
	// GradientFrames are the gradient frames that the server received: frames of workers, and
	// messages with sums of the aggregator.
	GradientFrames uint64 `json:"gradient_frames,omitempty"`
	// GradientBytes are the payloads of these frames, each counted once, and the messages.
	GradientBytes uint64 `json:"gradient_bytes,omitempty"`
	// ServerCPUSeconds is the CPU time of the server's process.
	ServerCPUSeconds float64 `json:"server_cpu_s,omitempty"`
	// Evaluations, with --out, are those after each epoch.
	Evaluations []node.Evaluation `json:"evaluations,omitempty"`
}

// sumOutcome sums the reports of the processes.
func (r *run) sumOutcome() Outcome {
	o := Outcome{
		Seconds:          r.elapsed.Seconds(),
		GradientFrames:   r.server.ColdFrames + r.server.HarvestMessages,
		GradientBytes:    r.server.HarvestBytes,
		ServerCPUSeconds: r.serverCPU.Seconds(),
		Evaluations:      r.server.Evaluations,
	}
	var samples uint64
	for _, w := range r.workers {
		samples += w.Samples
		o.GradientBytes += w.ColdBytes
	}
	o.SamplesPerSecond = float64(samples) / o.Seconds
	return o
}

// evaluate fills in how well the weights in the servers' checkpoints predict.
func (o *Outcome) evaluate(ctx context.Context, c *cluster.Config, heldOut *data.Dataset) error {
	store, _, err := trained(c)
	if err != nil {
		return err
	}
	return o.evaluateStore(ctx, c, store, heldOut)
}

func (o *Outcome) evaluateStore(ctx context.Context, c *cluster.Config, store *ps.Store, heldOut *data.Dataset) error {
	model, err := node.Model(c.Model)
	if err != nil {
		return err
	}
	o.Metrics, err = train.Evaluate(ctx, weights.Of(store), model, heldOut)
	if err == nil && !o.Finite() {
		return errors.New("the weights predict no numbers: training diverged: lower --learning-rate")
	}
	return err
}

// wants reports whether a baseline was requested.
func (o Options) wants(baseline string) bool { return slices.Contains(o.Baselines, baseline) }

// serverOnly repeats the training on the same cluster, with a hot set of one row that is not in the
// data, so that the aggregator has nothing to add.
func (r *run) serverOnly(ctx context.Context, heldOut *data.Dataset) (*Outcome, error) {
	c := *r.config
	dir := filepath.Dir(r.path)
	c.Job.HotSet = filepath.Join(dir, "cold.libra")
	setCheckpoints(&c, dir, "server-only.libra")
	c.Capture, c.Codec = "", cluster.Codec{} // floats, since hot rows would be coded too
	c.Job.IDs, c.Job.Plan = nil, ""          // one row is one share
	model, err := node.Model(c.Model)
	if err != nil {
		return nil, err
	}
	const unused = math.MaxUint64 - 1
	none, err := packer.NewHotSet(model.Dim(), []uint64{unused}, nil, packer.Meta{})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "server-only.yaml")
	if err := packer.SaveHotSet(c.Job.HotSet, none); err != nil {
		return nil, err
	}
	if err := c.Write(path); err != nil {
		return nil, err
	}
	again := &run{options: r.options, config: &c, path: path, bed: r.bed, rows: r.rows, unit: "samples without the switch"}
	if err := again.trainCluster(ctx); err != nil {
		return nil, fmt.Errorf("baseline %s: %w", ServerOnly, err)
	}
	o := again.sumOutcome()
	return &o, o.evaluate(ctx, &c, heldOut)
}
