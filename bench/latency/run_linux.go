// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"context"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/telemetry/breakdown"
)

// Run measures. When ctx is done, Run returns what it has, if anything, and the cause.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	r := &Report{Workers: cfg.Workers, Batch: cfg.Batch, Sample: cfg.Sample, Frames: cfg.Frames, Rounds: cfg.Rounds,
		times: breakdown.New()}
	// Before anything that takes long: a file may be missing.
	for _, path := range cfg.Logs {
		h, err := countLog(path, cfg.LogBatch, cfg.Top)
		if err != nil {
			return nil, fmt.Errorf("latency: %w", err)
		}
		r.Hot = append(r.Hot, h)
	}
	for _, path := range cfg.Captures {
		t, err := readTraffic(path)
		if err != nil {
			return nil, fmt.Errorf("latency: %w", err)
		}
		r.Traffic = append(r.Traffic, t)
	}
	var zmq *baselines.Executable
	programs := []string{Libra}
	for _, b := range cfg.Baselines {
		zmq, err = baselines.Connections.Build(ctx)
		if missing := baselines.Connections.Missing(b, err); missing != nil {
			experiment.AddUnavailable(&r.Unavailable, *missing)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("latency: %w", err)
		}
		defer func() { err = errors.Join(err, zmq.Close()) }()
		programs = append(programs, b)
	}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: cfg.Rounds * (2 + len(programs)*len(cfg.Senders))}
	measured := func(ctx context.Context) (JobSample, error) { return measureJob(ctx, &cfg, r.times) }
	job := &experiment.Subject[JobSample]{What: "the parts of frames", Measure: measured}
	err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, []*experiment.Subject[JobSample]{job})
	r.Jobs = job.Samples
	saving := &experiment.Subject[SavingSample]{What: "the server with a hot set and without",
		Measure: func(ctx context.Context) (SavingSample, error) { return measureSaving(ctx, &cfg) }}
	if err == nil {
		err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, []*experiment.Subject[SavingSample]{saving})
	}
	r.Savings = saving.Samples
	var subjects []*experiment.Subject[SenderSample]
	for _, program := range programs {
		for _, n := range cfg.Senders {
			measure := func(ctx context.Context) (SenderSample, error) { return measureSenders(ctx, n, cfg.Frames) }
			if program == ZeroMQ {
				measure = func(ctx context.Context) (SenderSample, error) { return measureConnections(ctx, zmq, n, cfg.Frames) }
			}
			what := fmt.Sprintf("%s, %d senders", program, n)
			subjects = append(subjects, &experiment.Subject[SenderSample]{What: what, Measure: measure})
			r.Senders = append(r.Senders, Senders{Program: program, Senders: n})
		}
	}
	if err == nil {
		err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, subjects)
	}
	for i, s := range subjects {
		r.Senders[i].Samples = s.Samples
	}
	if err != nil {
		err = fmt.Errorf("latency: %w", err)
		if len(r.Jobs) == 0 {
			return nil, err
		}
	}
	r.finish()
	return r, err
}
