// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const (
	jobID = 1
	// opTrain is the only request to a worker of dense. It is made to all at the same time.
	opTrain = "train"
)

// denseConfig configures a worker of dense.
type denseConfig struct {
	harness.HostConfig
	Training glm.Config
	Data     string
	Columns  int
	Number   int // from 0 on, of Workers
	Workers  int
}

// trained is a worker's answer: at the end of each epoch, the time since the start, and the sum of
// the losses of its own rows.
type trained struct {
	Ends   []time.Duration
	Losses []float64
}

// trainDense trains with workers that hold a copy of the weights each.
func (r *run) trainDense(ctx context.Context, cfg glm.Config, d dataset) (s Sample, curve []Point, err error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: r.cfg.Workers, MTU: wire.MaxMTU, StaticARP: true})
	if err != nil {
		return s, nil, err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	plane, err := harness.OpenSwitch(network)
	if err != nil {
		return s, nil, err
	}
	defer func() { err = errors.Join(err, plane.Close()) }()
	var answers []trained
	err = harness.WithPlane(ctx, network, plane, func(group *proc.Group) (err error) {
		answers, err = r.askDense(ctx, group, network, cfg, d)
		return err
	})
	if err != nil {
		return s, nil, err
	}
	for e := range cfg.Epochs {
		var p Point
		for _, a := range answers {
			p.Seconds = max(p.Seconds, a.Ends[e].Seconds())
			p.Loss += a.Losses[e] / float64(len(d.rows))
		}
		curve = append(curve, p)
	}
	return Sample{Epoch: curve[cfg.Epochs-1].Seconds / float64(cfg.Epochs)}, curve, nil
}

// askDense starts the workers and has them train.
func (r *run) askDense(ctx context.Context, group *proc.Group, network *testbed.Bed, cfg glm.Config,
	d dataset) ([]trained, error) {
	var specs []child.Spec
	for i := range r.cfg.Workers {
		c := denseConfig{
			HostConfig: harness.HostConfigOf(network, i), Training: cfg, Data: d.path, Columns: d.Columns, Number: i,
			Workers: r.cfg.Workers,
		}
		c.MTU, c.Spin = wire.MaxMTU, -1 // workers share the CPUs
		specs = append(specs, child.Spec{
			Name: fmt.Sprintf("%s worker %d", Dense, i), Command: r.cfg.ChildCommand, Config: c,
			CPU: new(i % runtime.NumCPU()), Start: network.Host(i).Start,
		})
	}
	all, err := child.StartAll(ctx, group, specs)
	if err != nil {
		return nil, err
	}
	answers, err := child.AskAll[trained](ctx, all, opTrain)
	if err != nil {
		return nil, err
	}
	return answers, child.StopAll(ctx, all)
}

// RunChild is a worker of dense, on a host of the test bed. It is of no use by itself.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c denseConfig) error {
		runtime.GOMAXPROCS(1) // it shares its CPU
		if err := c.run(ctx); err != nil {
			return fmt.Errorf("glm: %w", err)
		}
		return nil
	})
}

func (c *denseConfig) run(ctx context.Context) (err error) {
	src, err := data.OpenFile(c.Data, c.Training.Objective.Task(), data.Shard{})
	if err != nil {
		return err
	}
	rows, err := read(src)
	if err = errors.Join(err, src.Close()); err != nil {
		return err
	}
	job, err := aggregator.JobConfig{
		ID: jobID, Mode: aggregator.Sync, Arithmetic: aggregator.Exact, Exp: aggregator.DefaultExp(aggregator.Exact),
		Workers: c.Workers, Slots: min(c.Columns, aggregator.PageSlots), MaxStripes: wire.MaxStripes,
	}.Complete()
	if err != nil {
		return err
	}
	rounds, err := c.JoinRounds(ctx, job, c.Number, fmt.Sprintf("%s, %v", Dense, c.Training))
	if err != nil {
		return err
	}
	defer rounds.Leave()
	w, err := c.StartReducing(ctx, rounds, job, c.Number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		if op != opTrain {
			return nil, child.Unknown(op)
		}
		return c.train(ctx, w, rows, job.Slots)
	})
}

// train trains all epochs. Gradients that are longer than a job's slots are added in parts.
func (c *denseConfig) train(ctx context.Context, w *transport.Worker, rows []data.Sample, part int) (trained, error) {
	var t trained
	f := newFloats(c.Training, rows, (c.Columns+part-1)/part*part)
	reduce := func(gradient []float32) error {
		for at := 0; at < len(gradient); at += part {
			if err := w.Reduce(ctx, gradient[at:at+part], gradient[at:at+part]); err != nil {
				return err
			}
		}
		return nil
	}
	begun := time.Now()
	for e := range c.Training.Epochs {
		loss, err := f.train(e, c.Number, c.Workers, reduce)
		if err != nil {
			return t, err
		}
		t.Ends, t.Losses = append(t.Ends, time.Since(begun)), append(t.Losses, loss)
	}
	return t, nil
}
