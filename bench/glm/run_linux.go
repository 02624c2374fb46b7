// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/allreduce"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. When ctx is
// done, Run returns what it has, if anything, and the cause. Nothing is left behind.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := errors.Join(cfg.checkFields(), child.Command(&cfg.ChildCommand, "glm")); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, report: &Report{
		CPUs: runtime.NumCPU(), Workers: cfg.Workers, Rows: cfg.Rows, Epochs: cfg.Epochs, Rounds: cfg.Rounds,
	}}
	folder, err := os.MkdirTemp("", "libra-bench-glm-")
	if err != nil {
		return nil, fmt.Errorf("glm: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := r.prepare(folder); err != nil {
		return nil, fmt.Errorf("glm: %w", err)
	}
	err = r.measureAll(ctx)
	if denied, ok := errors.AsType[*testbed.CapabilityError](err); ok {
		err = denied // without the remedy of 'libra glm', which is none here
	}
	if err != nil {
		err = fmt.Errorf("glm: %w", err)
		if len(r.report.Results) == 0 {
			return nil, err
		}
	}
	r.report.finish()
	return r.report, err
}

type run struct {
	cfg    Config
	report *Report
	data   []dataset // one for each of cfg.Shapes
}

// dataset is the part of a shape's rows that is trained, in memory and in a file.
type dataset struct {
	Shape
	rows []data.Sample
	path string
}

// prepare makes the rows.
func (r *run) prepare(folder string) error {
	for _, name := range r.cfg.Shapes {
		d := dataset{Shape: shapeOf(name), path: filepath.Join(folder, name+".libsvm")}
		d.rows = d.generate(min(r.cfg.Rows, d.Rows))
		f, err := os.Create(d.path)
		if err != nil {
			return err
		}
		if err := errors.Join(write(f, d.rows), f.Close()); err != nil {
			return err
		}
		r.data = append(r.data, d)
	}
	return nil
}

func (r *run) measureAll(ctx context.Context) error {
	steps := experiment.ProgressCounter{Progress: r.cfg.Progress}
	subjects := r.subjects()
	steps.Total = len(subjects)*r.cfg.Rounds + len(r.data) + 1
	var all []*experiment.Subject[Sample]
	for i := range subjects {
		all = append(all, &subjects[i].Subject)
	}
	err := experiment.TakeTurns(ctx, r.cfg.Rounds, &steps, all)
	for _, s := range subjects {
		if len(s.Samples) > 0 {
			s.result.Samples = s.Samples
			r.report.Results = append(r.report.Results, s.result)
		}
	}
	for _, d := range r.data {
		if err != nil {
			return err
		}
		steps.Next("losses of " + d.Name)
		var losses []Losses
		losses, err = measureLosses(ctx, r.cfg.training(lossBatch), d.rows, d.Columns)
		for _, l := range losses {
			l.Shape = d.Name
			r.report.Losses = append(r.report.Losses, l)
		}
	}
	if err != nil {
		return err
	}
	steps.Next("all-reduces")
	return r.scale(ctx)
}

// subject is one way to train one shape with one size of mini-batches.
type subject struct {
	experiment.Subject[Sample]
	result Result
}

func (r *run) subjects() (all []*subject) {
	for _, d := range r.data {
		for _, batch := range r.cfg.Batches {
			for _, method := range r.cfg.Baselines {
				s := &subject{result: Result{Shape: d.Name, Batch: batch, Method: method}}
				s.What = fmt.Sprintf("%s, mini-batches of %d, %s", d.Name, batch, method)
				s.Measure = func(ctx context.Context) (sample Sample, err error) {
					var curve []Point
					switch cfg := r.cfg.training(batch); method {
					case Libra:
						sample, curve, err = r.trainLibra(ctx, cfg, d)
					case Dense:
						sample, curve, err = r.trainDense(ctx, cfg, d)
					default:
						sample, err = r.trainSparse(ctx, cfg, d)
					}
					if s.result.Curve == nil {
						s.result.Curve = curve
					}
					return sample, err
				}
				all = append(all, s)
			}
		}
	}
	return all
}

// trainLibra is 'libra glm'.
func (r *run) trainLibra(ctx context.Context, cfg glm.Config, d dataset) (s Sample, curve []Point, err error) {
	result, err := demo.RunGLM(ctx, demo.GLM{
		Training: cfg, Data: d.path, Workers: r.cfg.Workers, Backend: cluster.BackendAFXDP, Stderr: io.Discard,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return s, nil, err
	}
	for e, end := range result.EpochEnds {
		curve = append(curve, Point{Seconds: end, Loss: result.Epochs[e].Loss})
	}
	return Sample{Epoch: result.Seconds / float64(cfg.Epochs)}, curve, nil
}

// trainSparse is 'libra demo --sync'.
func (r *run) trainSparse(ctx context.Context, cfg glm.Config, d dataset) (s Sample, err error) {
	result, err := demo.Run(ctx, demo.Options{
		Data: d.path, Model: "lr", Task: data.Classification.String(), Arithmetic: aggregator.Exact.String(),
		Optimizer: ps.SGD.String(), LearningRate: cfg.LearningRate, Sync: true, Batch: cfg.Batch / r.cfg.Workers,
		Epochs: cfg.Epochs, Seed: cfg.Seed, Workers: r.cfg.Workers, Backend: cluster.BackendAFXDP, Stderr: io.Discard,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return s, err
	}
	return Sample{Epoch: result.StepSeconds / float64(cfg.Epochs)}, nil
}

// scale measures the parts of Equation 3 for each number of workers.
func (r *run) scale(ctx context.Context) error {
	latencies, err := r.measureLatencies(ctx)
	if err != nil {
		return err
	}
	for _, d := range r.data {
		for _, batch := range r.cfg.Batches {
			if batch > len(d.rows) {
				continue
			}
			for _, workers := range r.cfg.Scale {
				parts, err := measureParts(ctx, r.cfg.training(batch), d.rows, workers)
				if err != nil {
					return err
				}
				for _, l := range latencies {
					if l.Workers == workers {
						r.report.Scaled = append(r.report.Scaled, Scaled{
							Shape: d.Name, Batch: batch, Workers: workers, Network: l.Baseline, Parts: parts, Latency: l.P50 / 1e9,
						})
					}
				}
			}
		}
	}
	return nil
}

// measureLatencies measures an all-reduce of a micro-batch, with SwitchML's scheme and MPI beside
// ours. A worker alone needs none.
func (r *run) measureLatencies(ctx context.Context) (all []allreduce.Result, err error) {
	c := allreduce.Defaults()
	c.Workers, c.Width, c.Operations, c.Rounds = nil, microBatch, r.cfg.Operations, 1
	c.Baselines = []string{allreduce.Libra, allreduce.Reduce, allreduce.MPI}
	for _, workers := range r.cfg.Scale {
		if workers == 1 {
			all = append(all, allreduce.Result{Workers: 1, Baseline: allreduce.Libra})
			continue
		}
		c.Workers = append(c.Workers, workers)
	}
	if c.Workers == nil {
		return all, nil
	}
	report, err := allreduce.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	r.report.Unavailable = report.Unavailable
	return append(all, report.Results...), nil
}
