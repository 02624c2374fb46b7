// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/transport"
)

// WorkerOptions are a worker's options in addition to the configuration.
type WorkerOptions struct {
	ID uint16
	// Progress, if set, is called after each mini-batch.
	Progress func(train.Progress)
}

// WorkerResult is the result of a worker. After a rewind the counts of frames, pairs and bytes, the
// times and the loss begin anew.
type WorkerResult struct {
	Worker          uint16        `json:"worker"`
	Backend         string        `json:"backend"`
	Samples         uint64        `json:"samples"`
	Steps           uint64        `json:"steps"`
	data.Loss                     // of the last epoch, each sample before its update
	Elapsed         time.Duration `json:"elapsed_ns"`
	HotPairs        uint64        `json:"hot_pairs"`
	ColdPairs       uint64        `json:"cold_pairs"`
	ColdBytes       uint64        `json:"cold_bytes"`  // payloads of cold pairs with their keys, without retransmissions
	SavedBytes      int64         `json:"saved_bytes"` // by the codec: what its codes are shorter than floats
	AddedPairs      uint64        `json:"added_pairs"` // of hot rows, summed by the worker before it pushed
	Vanished        uint64        `json:"vanished"`    // gradients that the job's unit rounds to 0
	Frames          uint64        `json:"frames"`      // pushes and pulls, without retransmissions
	HotFrames       uint64        `json:"hot_frames"`
	LogWaits        uint64        `json:"log_waits"`      // for room in the log of job.replay_mib
	Settled         uint64        `json:"settled_frames"` // hot frames sent to the server because the aggregator was lost
	Rewinds         uint64        `json:"rewinds"`        // after which it has joined again, because another worker was lost
	Retransmissions uint64        `json:"retransmissions"`
	RTTHot          time.Duration `json:"rtt_hot_ns"`
	RTTCold         time.Duration `json:"rtt_cold_ns"`
	Dropped         uint64        `json:"faults_dropped"`
	Duplicated      uint64        `json:"faults_duplicated"`
	Reordered       uint64        `json:"faults_reordered"`
	// Latencies are the times of drawn frames and pushes.
	Latencies []telemetry.Summary `json:"latencies,omitempty"`
}

// reportEvery is the longest time between two reports of an asynchronous worker. Each waits until
// everything that it pushed is acknowledged.
const reportEvery = time.Second

// RunWorker trains one shard of the data and returns when its last epoch is done and everything
// that it pushed is acknowledged. When the job rewinds because it has lost a worker, this one joins
// again, and repeats the open step; when it has lost the server, the worker waits for that, and
// goes on from its checkpoint.
func RunWorker(ctx context.Context, env Env, o WorkerOptions) (*WorkerResult, error) {
	var before WorkerResult // what earlier admissions have trained
	all := newAdmissions(env.Config)
	if env.Ready != nil {
		env.Ready = sync.OnceFunc(env.Ready)
	}
	for {
		var trained train.Progress
		one := o
		one.Progress = func(p train.Progress) {
			trained = p
			p.Steps, p.Samples = p.Steps+before.Steps, p.Samples+before.Samples
			if o.Progress != nil {
				o.Progress(p)
			}
		}
		begin := time.Now()
		r, err := runAdmission(ctx, env, one, all)
		switch {
		case err == nil:
			r.Rewinds = before.Rewinds
			r.Steps, r.Samples, r.Elapsed = r.Steps+before.Steps, r.Samples+before.Samples, r.Elapsed+before.Elapsed
			return r, nil
		case !all.joinsAfter(err):
			return nil, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx) // it has been stopped meanwhile
		}
		env.Log.Warn("the job has lost a worker or its server: this worker joins again, and repeats the open step or goes back to the checkpoint",
			"worker", o.ID, "reason", err)
		before.Rewinds++
		before.Steps, before.Samples = before.Steps+trained.Steps, before.Samples+trained.Samples
		before.Elapsed += time.Since(begin)
	}
}

// runAdmission is RunWorker until the worker has finished, or its admission ends.
func runAdmission(ctx context.Context, env Env, o WorkerOptions, all *admissions) (result *WorkerResult, err error) {
	c := env.Config
	self, err := c.Worker(o.ID)
	if err != nil {
		return nil, err
	}
	training, err := TrainConfig(c)
	if err != nil {
		return nil, err
	}
	training.Progress = o.Progress
	training.Counted = func(rows int) { AdviseStaleness(env.Log, c, len(c.Workers), rows) }
	src, err := OpenSource(c, c.Shard(o.ID))
	if err != nil {
		return nil, err
	}
	defer src.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !c.Job.Sync {
		all = nil
	}
	w, err := openEndpoint(ctx, cancel, env, self, training.Model.Dim(), all)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.closeEndpoint()) }()
	members := w.members
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	shown := env.showWorker(security, w, self.Address, o.ID)
	defer shown.Close()

	env.Log.Info("worker trains", "worker", o.ID, "backend", c.Backend, "arithmetic", members.Arithmetic, "layout",
		layout(members), "stripes", members.Stripes, "step", members.FirstStep)
	env.ready()
	training.First = members.FirstStep
	source := earlyClient(client{w.Worker, members, env.Machine.Pushes, env.Machine.Flushed})
	kept := &hotRows{}
	if c.Job.Accumulate > 1 {
		kept = newHotRows(source, w.hot, c.Job.Accumulate)
		source = kept
	}
	if !c.Job.Sync || c.Data.HasTest() { // a synchronous server knows the steps by itself
		training.Report = func(ctx context.Context, r train.Reached) error {
			err := members.Report(ctx, r.Steps, r.Epochs, r.Ends)
			kept.expireWeights()
			return err
		}
	}
	training.ReportEvery, training.Staleness = reportEvery, c.Job.Staleness
	trained, err := train.Train(ctx, source, src, training)
	if err != nil {
		why := verdict(ctx, err, all != nil && all.goesOn)
		failed := withRemedy(err, withField(c, why), training.Model.Task(), c.Model.InitScale)
		if w.departure = departureFor(ctx, why); w.departure.Reason != "" {
			w.departure.Reason = failed.Error() // the others end because of it, and show it
		}
		return nil, withCheckpoint(failed, w.departure, c, training.First > 0)
	}
	if err := awaitCommits(ctx, w, env); err != nil {
		return nil, reason(ctx, err)
	}
	stats, err := w.Stats(ctx)
	if err != nil {
		return nil, reason(ctx, err)
	}
	if err := members.Done(ctx); err != nil {
		return nil, reason(ctx, err)
	}
	result = workerResult(o.ID, c.Backend, trained, stats, training.Model.Dim())
	result.AddedPairs = kept.added
	result.Latencies = telemetry.Summaries(w.Recorder().Series())
	return result, nil
}

// reason returns why a peer ended a run, if one did: that is more specific than the local error
// that it caused.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func workerResult(id uint16, backend string, t train.Result, s transport.WorkerStats, dim int) *WorkerResult {
	return &WorkerResult{
		Worker:          id,
		Backend:         backend,
		Samples:         t.Samples,
		Steps:           t.Steps,
		Loss:            t.Loss,
		Elapsed:         t.Elapsed,
		HotPairs:        s.PairsHot,
		ColdPairs:       s.RowsCold * uint64(dim),
		ColdBytes:       s.BytesCold,
		SavedBytes:      4*int64(s.CodedValues) - int64(s.CodedBytes),
		Vanished:        s.Vanished,
		Frames:          s.Hot.Sent + s.Cold.Sent,
		HotFrames:       s.Hot.Sent,
		LogWaits:        s.LogWaits,
		Settled:         s.Settled,
		Retransmissions: s.Hot.Retransmitted + s.Cold.Retransmitted,
		RTTHot:          s.Hot.SRTT,
		RTTCold:         s.Cold.SRTT,
		Dropped:         s.Link.Dropped,
		Duplicated:      s.Link.Duplicated,
		Reordered:       s.Link.Reordered,
	}
}

// client is a worker's access to its cluster, for the training loop.
type client struct {
	*transport.Worker
	members *control.Membership
	pushes  func(keys []uint64, grads []float32) // may be nil, as flushed may
	flushed func()
}

func (c client) BeginPull(ctx context.Context, keys []uint64, dst []float32) (train.Pulling, error) {
	wait, err := c.Worker.BeginPull(ctx, keys, dst)
	if err != nil {
		return nil, err
	}
	return pulling(wait), nil
}

// pulling waits for a pull.
type pulling func(ctx context.Context) error

// Wait implements [train.Pulling].
func (p pulling) Wait(ctx context.Context) error { return p(ctx) }

func (c client) Push(ctx context.Context, keys []uint64, grads []float32) error {
	if c.pushes != nil {
		c.pushes(keys, grads)
	}
	_, err := c.Worker.Push(ctx, keys, grads) // Flush reports later refusals
	return err
}

func (c client) Flush(ctx context.Context) error {
	err := c.Worker.Flush(ctx)
	if err == nil && c.flushed != nil {
		c.flushed()
	}
	return err
}

func (c client) Barrier(ctx context.Context, step uint64) error {
	return c.members.Barrier(ctx, step)
}
