// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
	"github.com/libra-ina/libra/transport/reducer"
	"github.com/libra-ina/libra/wire"
)

// GLMOptions are the options of a worker of a generalised linear model. All but ID, Out, Format and
// Progress are the same for all workers; so is the content of Data.
type GLMOptions struct {
	ID       uint16
	Training glm.Config
	// Acked makes the job one of mode acked: see reducer.Shape.
	Acked bool
	// Data is a libfm or libsvm file; "" means a synthetic click log of Rows rows.
	Data string
	Rows int
	// Out, if set, is the file into which the worker with the lowest number writes the weights, in a
	// format of package weights.
	Out, Format string
	// Progress, if set, is called after each mini-batch.
	Progress func(glm.Progress)
}

// DefaultGLMRows is the default of GLMOptions.Rows.
const DefaultGLMRows = 100_000

// GLMResult is the result of a worker of a generalised linear model.
type GLMResult struct {
	Worker  uint16      `json:"worker"`
	Backend string      `json:"backend"`
	Rows    int         `json:"rows"`
	Columns int         `json:"columns"` // that this worker holds
	Epochs  []glm.Epoch `json:"epochs"`
	// EpochEnds are the times from the start of the training until the end of each epoch.
	EpochEnds  []time.Duration `json:"epoch_ends_ns"`
	Elapsed    time.Duration   `json:"elapsed_ns"` // of the training, without reading data and collecting the model
	Operations uint64          `json:"operations"` // all-reduces of the training
	Repeated   uint64          `json:"repeated"`   // frames that were sent again
	Dropped    uint64          `json:"faults_dropped"`
	Duplicated uint64          `json:"faults_duplicated"`
	Reordered  uint64          `json:"faults_reordered"`
	// Model is at the worker with the lowest number only.
	Model *GLMModel `json:"model,omitempty"`
}

// GLMModel is the whole model.
type GLMModel struct {
	Columns       int    `json:"columns"`
	WeightsSHA256 string `json:"weights_sha256"` // of all columns
}

// othersNotice is how long the worker that holds the job waits when it gives up others.
const othersNotice = 500 * time.Millisecond

// operationsInFlight hides the latency of an operation behind the forward passes of as many
// micro-batches.
const operationsInFlight = 8

// RunGLM trains a worker's columns of a generalised linear model. The job has no parameter server:
// its worker with the lowest number creates and holds it.
func RunGLM(ctx context.Context, env Env, o GLMOptions) (result *GLMResult, err error) {
	c := env.Config
	self, err := c.Worker(o.ID)
	if err != nil {
		return nil, err
	}
	shape, err := o.shape(c)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	rows, index, err := o.load(ctx, c)
	if err != nil {
		return nil, err
	}
	env.Log.Info("data read", "rows", rows.Len(), "columns", rows.Columns())
	l, err := awaitInterface(ctx, env.Log, false, func() (link.Link, error) { return openLink(env, self.Host, true) })
	if err != nil {
		return nil, err
	}
	endCapture, err := offerCapture(env, l, fmt.Sprintf("worker %d", self.ID), self.Host)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, l.Close(), endCapture()) }() // a second Close does nothing

	// Its end makes a worker that fails leave at once.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Others need about as long for reading.
	rounds, err := joinGLM(ctx, env, self, shape, l.Local(), o.what(rows), startLimit+time.Since(begun))
	if err != nil {
		return nil, err
	}
	defer rounds.Leave()
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	r, err := reducer.New[int32](ctx, reducer.Config{
		Link: l, Job: c.Job.ID, Sender: self.ID, Epoch: rounds.Epoch, Shape: shape, Limit: c.Silence,
		Aggregator: wire.Endpoint{IP: c.Switch.Address, Port: c.Port}, Members: rounds.Members, Ended: rounds.Err,
	})
	if err != nil {
		return nil, err
	}
	env.Log.Info("worker trains", "worker", o.ID, "backend", c.Backend, "objective", o.Training.Objective, "bits",
		o.Training.Bits)
	env.ready()
	begun = time.Now()
	ends := make([]time.Duration, o.Training.Epochs)
	progress := func(p glm.Progress) {
		ends[p.Epoch] = time.Since(begun)
		if o.Progress != nil {
			o.Progress(p)
		}
	}
	trained, err := glm.Worker{
		Config: o.Training, Rows: rows, Index: index, Workers: len(c.Workers), Sums: sums{r}, Width: shape.Width,
		InFlight: shape.InFlight, Progress: progress,
	}.Train(ctx)
	if err != nil {
		return nil, o.explain(ctx, c, rounds, err)
	}
	result = &GLMResult{
		Worker: o.ID, Backend: c.Backend, Rows: rows.Len(), Columns: rows.Columns(), Epochs: trained.Epochs, EpochEnds: ends,
		Elapsed: time.Since(begun), Operations: r.Stats().Results,
	}
	model, err := trained.Collect(ctx)
	if err != nil {
		return nil, o.explain(ctx, c, rounds, err)
	}
	result.Repeated = r.Stats().Repeats + r.Stats().Hurried
	faults := l.Stats()
	result.Dropped, result.Duplicated, result.Reordered = faults.Dropped, faults.Duplicated, faults.Reordered
	if model == nil {
		return result, nil
	}
	result.Model = &GLMModel{Columns: model.Len(), WeightsSHA256: model.SHA256()}
	return result, o.save(model)
}

// shape returns the shape of operations: whole stripes, whose lanes cost nothing. They carry the
// model in the end.
func (o *GLMOptions) shape(c *cluster.Config) (reducer.Shape, error) {
	if err := o.Training.Validate(); err != nil {
		return reducer.Shape{}, err
	}
	stripes := (o.Training.MicroBatch + wire.Lanes - 1) / wire.Lanes
	if most := c.Switch.Stripes; stripes > most {
		return reducer.Shape{}, fmt.Errorf("micro-batch %d: a frame of it has %d stripes, and the switch takes %d (switch.stripes): give at most %d, or raise switch.stripes",
			o.Training.MicroBatch, stripes, most, most*wire.Lanes)
	}
	if n := len(c.Workers); n > aggregator.MaxWorkers {
		return reducer.Shape{}, fmt.Errorf("%d workers in the cluster configuration: at most %d can take part in rounds", n,
			aggregator.MaxWorkers)
	}
	return reducer.Shape{
		Workers: len(c.Workers), Width: stripes * wire.Lanes, InFlight: operationsInFlight, Acked: o.Acked,
	}, nil
}

// load reads the data and keeps the worker's columns. Workers are counted in the order of their
// numbers.
func (o *GLMOptions) load(ctx context.Context, c *cluster.Config) (rows *glm.Rows, index int, err error) {
	var src data.Source
	if o.Data != "" {
		src, err = data.OpenFile(o.Data, o.Training.Objective.Task(), data.Shard{})
	} else {
		src, err = data.NewSynthetic(data.SyntheticConfig{
			Rows: cmp.Or(o.Rows, DefaultGLMRows), Seed: o.Training.Seed, Task: o.Training.Objective.Task(),
		}, data.Shard{})
	}
	if err != nil {
		return nil, 0, err
	}
	defer src.Close()
	index = slices.Index(slices.Sorted(slices.Values(c.WorkerIDs())), o.ID)
	rows, err = glm.Load(ctx, src, packer.Split(len(c.Workers)), index, o.Training.Bits)
	return rows, index, err
}

// what names the training, for workers that do not belong together.
func (o *GLMOptions) what(rows *glm.Rows) string {
	return fmt.Sprintf("libra glm: %v, %d rows with digest %s", o.Training, rows.Len(), rows.Digest())
}

// joinGLM creates the job, or joins it.
func joinGLM(ctx context.Context, env Env, self cluster.Worker, shape reducer.Shape, from wire.Endpoint, what string,
	limit time.Duration) (*control.Rounds, error) {
	c := env.Config
	job, err := reducer.Job[int32](shape)
	if err != nil {
		return nil, err
	}
	job.ID = c.Job.ID
	cfg := control.RoundsConfig{
		Job: job, What: what, Workers: c.WorkerIDs(), Worker: self.ID, From: netip.AddrPortFrom(self.Address, c.Port),
		Aggregator: c.Switch.Control, Limit: limit, Dial: env.Machine.Client, Random: env.Machine.Random, Log: env.Log,
	}
	if c.Backend == cluster.BackendAFXDP {
		cfg.MAC = from.MAC[:]
	}
	if cfg.Security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
		return nil, err
	}
	return control.JoinRounds(ctx, cfg)
}

// explain adds who may have ended the job.
func (o *GLMOptions) explain(ctx context.Context, c *cluster.Config, rounds *control.Rounds, err error) error {
	first := slices.Min(c.WorkerIDs())
	var refused *reducer.RefusedError
	var missing *reducer.MissingError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &missing) && o.ID == first:
		// The others miss the same workers. The job, which ends with this one, is there until they have
		// said so.
		select {
		case <-time.After(othersNotice):
		case <-ctx.Done():
		}
	case (rounds.Err() != nil || errors.As(err, &refused)) && o.ID != first:
		return fmt.Errorf("worker %d, which holds the job, has ended, or the switch has: see what it says, and start all workers again: %w",
			first, err)
	}
	return err
}

// save writes the weights.
func (o *GLMOptions) save(model *glm.Model) error {
	if o.Out == "" {
		return nil
	}
	w, err := model.Weights(o.Training.Objective)
	if err != nil {
		return err
	}
	if err := w.Save(o.Out, o.Format); err != nil {
		return err
	}
	return file.Give(o.Out)
}

// sums is a reducer behind the interface of package glm.
type sums struct{ *reducer.Reducer[int32] }

func (s sums) Start(values []int32) (uint64, error) {
	op, err := s.Reducer.Start(values)
	return uint64(op), err
}

func (s sums) Wait(op uint64, sums []int32) error { return s.Reducer.Wait(reducer.Op(op), sums) }
