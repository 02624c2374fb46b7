// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/transport/reducer"
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. MPI and Gloo,
// where they are not installed, are reported in Report.Unavailable; a wrong sum ends the run. When
// ctx is done, Run returns what it has, if anything, and the cause. Nothing is left behind, however
// the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := errors.Join(cfg.checkFields(), child.Command(&cfg.ChildCommand, "allreduce")); err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, report: &Report{
		CPUs: runtime.NumCPU(), Width: cfg.Width, InFlight: cfg.InFlight, Operations: cfg.Operations,
		Rounds: cfg.Rounds, Loss: cfg.Loss,
	}}
	defer func() { err = errors.Join(err, experiment.Close(r.mpi, r.gloo)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	if err = r.takeTurns(ctx); err != nil && len(r.report.Results) == 0 {
		return nil, err
	}
	r.report.finish()
	return r.report, err
}

type run struct {
	cfg       Config
	report    *Report
	mpi, gloo *baselines.Executable
	baselines []string // that can run
}

// findBaselines finds out which baselines can run, and builds their programs.
func (r *run) findBaselines(ctx context.Context) error {
	for _, b := range r.cfg.Baselines {
		var err error
		var missing *experiment.Unavailable
		switch {
		case usesMPI(b) && r.mpi == nil:
			r.mpi, err = baselines.BuildMPI(ctx)
			missing = baselines.Allreduce.Missing(b, err)
		case b == Gloo:
			r.gloo, err = baselines.Gloo.Build(ctx)
			missing = baselines.Gloo.Missing(b, err)
		}
		switch {
		case missing != nil:
			experiment.AddUnavailable(&r.report.Unavailable, *missing)
		case err != nil:
			return err
		default:
			r.baselines = append(r.baselines, b)
		}
	}
	return nil
}

// takeTurns measures every number of workers with every baseline once in each round, for ratios
// within rounds.
func (r *run) takeTurns(ctx context.Context) error {
	var subjects []*experiment.Subject[Sample]
	for _, workers := range r.cfg.Workers {
		for _, b := range r.baselines {
			subjects = append(subjects, &experiment.Subject[Sample]{
				What: fmt.Sprintf("%d workers, %s", workers, b),
				Measure: func(ctx context.Context) (Sample, error) {
					if !ours(b) {
						return r.measureProgram(ctx, b, workers)
					}
					return r.measureLibra(ctx, b, workers)
				},
			})
		}
	}
	steps := experiment.ProgressCounter{Progress: r.cfg.Progress, Total: len(subjects) * r.cfg.Rounds}
	err := experiment.TakeTurns(ctx, r.cfg.Rounds, &steps, subjects)
	for i, s := range subjects {
		if len(s.Samples) > 0 {
			r.report.Results = append(r.report.Results, Result{
				Workers: r.cfg.Workers[i/len(r.baselines)], Baseline: r.baselines[i%len(r.baselines)], Samples: s.Samples,
			})
		}
	}
	if err != nil {
		return fmt.Errorf("allreduce: %w", err)
	}
	return nil
}

// measureProgram runs the program of a baseline that is not Libra.
func (r *run) measureProgram(ctx context.Context, baseline string, workers int) (Sample, error) {
	o := baselines.Operations{Workers: workers, Width: r.cfg.Width, WarmUp: warmUp, Number: r.cfg.Operations}
	var t baselines.Times
	var err error
	if baseline == Gloo {
		o.WarmUp, o.Number = o.WarmUp/glooShare, o.Number/glooShare
		t, err = baselines.RunGloo(ctx, r.gloo, o)
	} else {
		t, err = baselines.RunMPI(ctx, r.mpi, o, baseline == Shared)
	}
	return Sample{P1: t.P1, P50: t.P50, P99: t.P99, Mean: t.Mean}, err
}

// measureLibra runs workers on a bed of their own.
func (r *run) measureLibra(ctx context.Context, baseline string, workers int) (s Sample, err error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: workers, StaticARP: true})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	plane, end, err := openPlane(network, baseline)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, end()) }()
	err = harness.WithPlane(ctx, network, plane, func(group *proc.Group) (err error) {
		s, err = r.askWorkers(ctx, group, network, baseline, workers)
		return err
	})
	return s, err
}

// openPlane starts the aggregator of a baseline on the bed's switch.
func openPlane(network *testbed.Bed, baseline string) (aggregator.Plane, func() error, error) {
	if baseline != UDP {
		a, err := harness.OpenSwitch(network)
		if err != nil {
			return nil, nil, err
		}
		return a, a.Close, nil
	}
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		return nil, nil, err
	}
	var l link.Link
	at := aggregatorAt(network.Switch().IP)
	if err := network.Switch().Do(func() (err error) {
		l, err = link.OpenUDP(netip.AddrPortFrom(at.IP, at.Port))
		return err
	}); err != nil {
		return nil, nil, err
	}
	server, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: l, Model: model})
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return model, server.Close, nil
}

// askWorkers starts the workers and has them measure.
func (r *run) askWorkers(ctx context.Context, group *proc.Group, network *testbed.Bed, baseline string,
	workers int) (s Sample, err error) {
	var specs []child.Spec
	shape := reducer.Shape{
		Workers: workers, Width: r.cfg.Width, InFlight: r.cfg.InFlight, Exp: aggregator.DefaultExp(aggregator.Exact),
	}
	shape.Acked = baseline == Acked || baseline == AckedOne
	if baseline == AckedOne {
		shape.InFlight = 1
	}
	for i := range workers {
		c := childConfig{
			HostConfig: harness.HostConfigOf(network, i), Baseline: baseline, Number: i, Shape: shape,
			Operations: r.cfg.Operations,
		}
		c.Spin = -1 // whoever waits looks for itself, and yields
		switch baseline {
		case Lossy:
			c.Faults = link.Faults{Drop: r.cfg.Loss, Seed: uint64(i + 1)}
		case UDP:
			c.Self.Port, c.Self.MAC, c.Aggregator.Port = udpPort, [6]byte{}, udpPort
		}
		specs = append(specs, child.Spec{
			Name: fmt.Sprintf("%s worker %d", baseline, i), Command: r.cfg.ChildCommand, Config: c, CPU: new(i % runtime.NumCPU()),
			Start: network.Host(i).Start,
		})
	}
	all, err := child.StartAll(ctx, group, specs)
	if err != nil {
		return s, err
	}
	times, err := child.AskAll[Sample](ctx, all, opTimes)
	if err != nil {
		return s, err
	}
	s = times[0]
	if measuresRate(baseline) {
		rates, err := child.AskAll[Sample](ctx, all, opRate)
		if err != nil {
			return s, err
		}
		s.Rate = rates[0].Rate
	}
	return s, child.StopAll(ctx, all)
}
