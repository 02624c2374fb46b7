// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/packer"
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

// trained is a worker's answer: at the end of each epoch, the time since the start, and the sum of the
// losses of its own rows.
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
	endControl, err := harness.ServeControl(network, plane)
	if err != nil {
		return s, nil, err
	}
	defer endControl()
	group := proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit})
	answers, err := r.askDense(ctx, group, network, cfg, d)
	// The group knows what failed first, which explains the rest.
	if first := group.Stop(); first != nil {
		err = first
	}
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
	var all []*child.Child
	for i := range r.cfg.Workers {
		c := denseConfig{
			HostConfig: harness.HostConfigOf(network, i), Training: cfg, Data: d.path, Columns: d.Columns, Number: i,
			Workers: r.cfg.Workers,
		}
		c.MTU, c.Spin = wire.MaxMTU, -1 // workers share the CPUs
		w, err := child.Start(group, child.Spec{
			Name: fmt.Sprintf("%s worker %d", Dense, i), Command: r.cfg.ChildCommand, Config: c,
			CPU: new(i % runtime.NumCPU()), Start: network.Host(i).Start,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	for _, w := range all {
		if err := w.Ready(ctx); err != nil {
			return nil, err
		}
	}
	answers := make([]trained, len(all))
	asking, asked := errgroup.WithContext(ctx)
	for i, w := range all {
		asking.Go(func() error { return w.Ask(asked, opTrain, nil, &answers[i]) })
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	var leaving errgroup.Group
	for _, w := range all {
		leaving.Go(func() error { return w.Stop(ctx) })
	}
	return answers, leaving.Wait()
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
	var ids []uint16
	for id := range c.Workers {
		ids = append(ids, uint16(id))
	}
	rounds, err := control.JoinRounds(ctx, control.RoundsConfig{
		Job: job, What: fmt.Sprintf("%s, %v", Dense, c.Training), Workers: ids, Worker: uint16(c.Number),
		From: netip.AddrPortFrom(c.Self.IP, c.Self.Port), MAC: c.Self.MAC[:], Aggregator: c.Control,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer rounds.Leave()
	w, err := c.open(ctx, rounds, job)
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

func (c *denseConfig) open(ctx context.Context, rounds *control.Rounds,
	job aggregator.JobConfig) (*transport.Worker, error) {
	keys := make([]uint64, job.Slots)
	for i := range keys {
		keys[i] = uint64(i)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		return nil, err
	}
	l, err := c.OpenLink()
	if err != nil {
		return nil, err
	}
	server := c.Aggregator // a worker needs one, and sends it nothing
	server.Port++
	w, err := transport.NewWorker(ctx, transport.WorkerConfig{
		Link: l, Job: jobID, Sender: uint16(c.Number), AggregatorEpoch: rounds.Epoch, HotSet: hot, Mode: job.Mode,
		Arithmetic: job.Arithmetic, Exp: job.Exp, Workers: job.Workers, Stripes: job.MaxStripes, Layout: packer.LaneAligned,
		Aggregator: c.Aggregator, Server: server,
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return w, nil
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
