package demo

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/node"
	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

// result sums what the processes reported.
func (r *run) result(hot *packer.HotSet) *Result {
	o := r.options
	res := &Result{
		Backend:    o.Backend,
		Plane:      r.config.Switch.Plane,
		Data:       o.Data,
		Model:      o.Model,
		Arithmetic: o.Arithmetic,
		Workers:    o.Workers,
		Epochs:     o.Epochs,
		Sync:       o.Sync,
		HotRows:    hot.Len(),
		Outcome:    r.outcome(),
	}
	res.Data = cmp.Or(res.Data, "synthetic")
	for _, w := range r.workers {
		res.Samples += w.Samples
		res.HotPairs += w.HotPairs
		res.Pairs += w.HotPairs + w.ColdPairs
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
	res.FramesSpared = int64(r.server.HotFrames) - int64(r.server.HarvestMessages)
	return res
}

// judge evaluates the trained weights on held-out rows, and trains the baselines to
// compare them with.
func (r *run) judge(ctx context.Context, heldOut *workload.Dataset, res *Result) error {
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
func (r *run) oneProcess(ctx context.Context, heldOut *workload.Dataset, res *Result) error {
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
	reference, trained, err := o.reference(ctx, c, cfg, training)
	finish()
	if err != nil {
		return err
	}
	seconds := trained.Elapsed.Seconds()
	res.OneProcess = &Outcome{Seconds: seconds, SamplesPerSecond: float64(trained.Samples) / seconds}
	if o.Sync && o.Arithmetic == aggregator.Exact.String() {
		hash := reference.Hash()
		res.ReferenceSHA256 = hex.EncodeToString(hash[:])
	}
	return res.OneProcess.evaluateStore(ctx, c, reference, heldOut)
}

// heldOut returns the rows that were not trained: the test file's, or synthetic
// rows beyond those of the training.
func (o Options) heldOut(c *cluster.Config) (*workload.Dataset, error) {
	data := cluster.Data{Train: o.Test}
	switch {
	case o.Test != "":
	case o.Data != "":
		data.Train = o.Data
	default:
		beyond := *c.Data.Synthetic
		beyond.First, beyond.Rows = beyond.Rows, heldOutRows
		data.Synthetic = &beyond
	}
	src, err := node.OpenSource(data, workload.Shard{})
	if err != nil {
		return nil, err
	}
	defer src.Close()
	d, err := workload.Load(src)
	if err != nil {
		return nil, err
	}
	if labels := d.Labels(); !slices.Contains(labels, true) || !slices.Contains(labels, false) {
		return nil, fmt.Errorf("held-out rows %s: all %d have the same label, so that they have no AUC: give --test a file with both labels", data.Train, len(labels))
	}
	return d, nil
}

// reference trains in this process: with Sync, the same mini-batches in the
// same steps as the workers; without it, what a single worker would train.
func (o Options) reference(ctx context.Context, c *cluster.Config, cfg ps.Config, training workload.Config) (*ps.Store, workload.Result, error) {
	store, err := ps.New(cfg)
	if err != nil {
		return nil, workload.Result{}, err
	}
	shards := 1
	if o.Sync {
		shards = o.Workers
	}
	var sources []workload.Source
	for i := range shards {
		src, err := node.OpenSource(c.Data, workload.Shard{Index: i, Count: shards})
		if err != nil {
			return nil, workload.Result{}, err
		}
		defer src.Close()
		sources = append(sources, src)
	}
	result, err := workload.Reference(ctx, store, sources, training)
	return store, result, err
}
