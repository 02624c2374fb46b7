// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// sumResult sums the reports of the processes.
func (r *run) sumResult(hot *packer.HotSet) *Result {
	o, m := r.options, r.config.Model
	res := &Result{
		Backend:    o.Backend,
		Plane:      r.config.Switch.Plane,
		Data:       o.Data,
		Model:      o.Model,
		Task:       o.Task,
		Arithmetic: o.Arithmetic,
		Workers:    o.Workers,
		Servers:    len(r.config.AllServers()),
		Shares:     r.server.Shares,
		Switches:   max(1, len(r.config.Switches)),
		Epochs:     o.Epochs,
		Sync:       o.Sync,
		Batch:      m.Batch,
		Factors:    m.Factors,
		Optimizer:  m.Optimizer,
		Seed:       m.Seed,
		HotRows:    hot.Len(),
		Outcome:    r.sumOutcome(),
	}
	res.LearningRate, res.InitialAccumulator = float32(m.LearningRate), float32(m.InitialAccumulator)
	res.InitScale = float32(m.InitScale)
	res.CodecBound, res.CodecScale = o.CodecBound, o.CodecScale
	res.Data = cmp.Or(res.Data, "synthetic")
	for _, w := range r.workers {
		res.Samples += w.Samples
		res.HotPairs += w.HotPairs
		res.Pairs += w.HotPairs + w.ColdPairs
		res.AddedPairs += w.AddedPairs
		res.ColdBytes += w.ColdBytes
		res.SavedBytes += w.SavedBytes
		res.Frames += w.Frames
		res.Retransmissions += w.Retransmissions
		res.FaultsDropped += w.Dropped
		res.FaultsDuplicated += w.Duplicated
		res.FaultsReordered += w.Reordered
	}
	res.PairsPerSecond = float64(res.Pairs) / res.Seconds
	res.FramesPerSecond = float64(res.Frames) / res.Seconds
	res.HotShare = float64(res.HotPairs) / float64(res.Pairs)
	res.WeightsSHA256 = r.server.WeightsSHA256
	res.Steps = r.server.Steps
	for _, w := range r.workers {
		res.StepSeconds = max(res.StepSeconds, w.Elapsed.Seconds())
	}
	res.FramesSaved = int64(r.server.HotFrames) - int64(r.server.HarvestMessages)
	return res
}

// judgeWeights evaluates the trained weights on held-out rows, and trains the baselines for
// comparison.
func (r *run) judgeWeights(ctx context.Context, heldOut *data.Dataset, res *Result) error {
	o, c := r.options, r.config
	if err := res.evaluate(ctx, c, heldOut); err != nil {
		return err
	}
	if o.wants(OneProcess) {
		if err := r.oneProcess(ctx, heldOut, res); err != nil {
			return fmt.Errorf("baseline %s: %w", OneProcess, err)
		}
	}
	if !o.wants(ServerOnly) {
		return nil
	}
	var err error
	res.ServerOnly, err = r.serverOnly(ctx, heldOut)
	return err
}

// oneProcess trains the reference.
func (r *run) oneProcess(ctx context.Context, heldOut *data.Dataset, res *Result) error {
	o, c := r.options, r.config
	cfg, err := node.StoreConfig(c)
	if err != nil {
		return err
	}
	training, err := node.TrainConfig(c)
	if err != nil {
		return err
	}
	var finish func()
	training.Progress, finish = o.referenceProgress(r.rows)
	reference, err := ps.New(cfg)
	if err != nil {
		return err
	}
	res.OneProcess = &Outcome{}
	var evaluating time.Duration
	if o.Out != "" {
		training.EpochDone = func(epoch int) error {
			begin := time.Now()
			m, err := train.Evaluate(ctx, train.Local{Store: reference}, training.Model, heldOut)
			res.OneProcess.Evaluations = append(res.OneProcess.Evaluations, node.Evaluation{Epoch: epoch + 1, Metrics: m})
			evaluating += time.Since(begin)
			return err
		}
	}
	if o.Sync { // otherwise the codec is a part of what is compared
		hot, err := packer.LoadHotSet(c.Job.HotSet)
		if err != nil {
			return err
		}
		if training.Code, err = node.Coding(c, hot); err != nil {
			return err
		}
	}
	trained, err := o.reference(ctx, c, reference, training)
	finish()
	if err != nil {
		return err
	}
	res.OneProcess.Seconds = (trained.Elapsed - evaluating).Seconds()
	res.OneProcess.SamplesPerSecond = float64(trained.Samples) / res.OneProcess.Seconds
	if o.Sync && o.Arithmetic == aggregator.Exact.String() {
		hash := reference.Hash()
		res.ReferenceSHA256 = hex.EncodeToString(hash[:])
	}
	return res.OneProcess.evaluateStore(ctx, c, reference, heldOut)
}

// heldOut describes the rows that were not trained: the test file's, or synthetic rows after those
// of the training.
func (o Options) heldOut(c *cluster.Config) (cluster.Data, error) {
	data := c.Data
	if data.Synthetic != nil {
		beyond := *data.Synthetic
		beyond.Test = heldOutRows
		data.Synthetic = &beyond
		return data, nil
	}
	var err error
	if data.Test, err = filepath.Abs(cmp.Or(o.Test, o.Data)); err != nil {
		return data, fmt.Errorf("demo: %w", err)
	}
	return data, nil
}

// reference trains in this process: with Sync, the same mini-batches in the same steps as the
// workers; without it, those of a single worker.
func (o Options) reference(ctx context.Context, c *cluster.Config, store *ps.Store,
	training train.Config) (train.Result, error) {
	shards := 1
	if o.Sync {
		shards = o.Workers
	}
	var sources []data.Source
	for i := range shards {
		src, err := node.OpenSource(c, data.Shard{Index: i, Count: shards})
		if err != nil {
			return train.Result{}, err
		}
		defer src.Close()
		sources = append(sources, src)
	}
	return train.Reference(ctx, store, sources, training)
}
