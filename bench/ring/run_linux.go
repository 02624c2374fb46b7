// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

const (
	jobID   = 1
	ethernt = 1500 // MTU of the lines
	// waitLimit is how long a method may stand still: an operation through a server takes long on slow
	// lines.
	waitLimit = time.Minute
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. OpenMPI, where
// it is not installed, is reported in Report.Unavailable; a wrong sum ends the run. When ctx is
// done, Run returns what it has, if anything, and the cause.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	r := &Report{
		CPUs: runtime.NumCPU(), Values: cfg.Values, Bound: cfg.Bound, Scale: cfg.Scale, Operations: cfg.Operations,
		Rounds: cfg.Rounds, compared: subject{cfg.Rate, cfg.Workers, RingCoded},
	}
	methods := []string{RingCoded, Ring, ServerCoded, Server}
	mpi, err := baselines.BuildMPI(ctx)
	switch missing := baselines.Allreduce.Missing(MPI, err); {
	case missing != nil:
		r.Unavailable = append(r.Unavailable, *missing)
	case err != nil:
		return nil, fmt.Errorf("ring: %w", err)
	default:
		defer func() { err = errors.Join(err, mpi.Close()) }()
		methods = append(methods, MPI)
	}
	var all []subject
	for _, m := range methods {
		all = append(all, subject{cfg.Rate, cfg.Workers, m})
	}
	for _, workers := range cfg.Growth {
		for _, m := range []string{Ring, Server} {
			s := subject{cfg.GrowthRate, workers, m}
			r.growth = append(r.growth, s)
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	var subjects []*experiment.Subject[Sample]
	for _, s := range all {
		subjects = append(subjects, &experiment.Subject[Sample]{
			What:    fmt.Sprintf("%.0f Mb/s, %d workers, %s", s.rate, s.workers, s.method),
			Measure: func(ctx context.Context) (Sample, error) { return measure(ctx, cfg, s, mpi) },
		})
	}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: len(subjects) * cfg.Rounds}
	err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, subjects)
	for i, s := range subjects {
		if len(s.Samples) > 0 {
			r.Results = append(r.Results, Result{
				Rate: all[i].rate, Workers: all[i].workers, Method: all[i].method, Samples: s.Samples,
			})
		}
	}
	if err != nil {
		err = fmt.Errorf("ring: %w", err)
		if len(r.Results) == 0 {
			return nil, err
		}
	}
	r.finish()
	return r, err
}

// adder is how the workers of a measurement add.
type adder interface {
	// add replaces a worker's vector by the sum. All workers call it at the same time.
	add(ctx context.Context, worker int, vector []float32) error
	// sent returns how many bytes and frames the workers have sent, and repeated, so far.
	sent(ctx context.Context) (bytes, frames, repeated uint64, err error)
	close() error
}

// measure adds some vectors on a bed of its own.
func measure(ctx context.Context, cfg Config, s subject, mpi *baselines.Executable) (sample Sample, err error) {
	bed, err := testbed.New(ctx, testbed.Config{Hosts: s.workers + 1, MTU: ethernt, StaticARP: true})
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	for _, h := range bed.Hosts() {
		if err := h.LimitRate(s.rate * 1e6); err != nil {
			return sample, err
		}
	}
	if s.method == MPI {
		o := baselines.Operations{Workers: s.workers, Width: cfg.Values, WarmUp: 1, Number: cfg.Operations}
		took, err := baselines.RunMPIOn(ctx, mpi, o, bed)
		return Sample{Seconds: took.Mean / 1e9}, err
	}
	var with codec.Config
	if s.method == RingCoded || s.method == ServerCoded {
		with = codec.Config{Bound: cfg.Bound, Scale: cfg.Scale}
	}
	var a adder
	if s.method == Ring || s.method == RingCoded {
		a, err = openRing(ctx, bed, s.workers, cfg.Values, with)
	} else {
		a, err = openServer(ctx, bed, s.workers, cfg.Values, with)
	}
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	return addAll(ctx, a, cfg, s.workers, with)
}

// addAll adds and checks the sums. The first operation warms up.
func addAll(ctx context.Context, a adder, cfg Config, workers int, with codec.Config) (sample Sample, err error) {
	given := make([][]float32, workers)
	sums := make([]float64, cfg.Values)
	for w := range given {
		given[w] = make([]float32, cfg.Values)
		Gradients(given[w], w)
		for i, v := range given[w] {
			sums[i] += float64(v)
		}
	}
	bound := float64(workers) * 0x1p-20
	if with.Bound != 0 { // each worker may have cut off something twice: it adds what it has cut off before
		bound += 2 * float64(workers) * math.Ldexp(1, -with.Bound-with.Scale)
	}
	var took time.Duration
	var before [3]uint64
	for op := range cfg.Operations + 1 {
		if op == 1 {
			if before[0], before[1], before[2], err = a.sent(ctx); err != nil {
				return sample, err
			}
		}
		vectors := make([][]float32, workers)
		for w := range vectors {
			vectors[w] = slices.Clone(given[w])
		}
		runtime.GC() // not while it is measured
		began := time.Now()
		var group errgroup.Group
		for w, v := range vectors {
			group.Go(func() error { return a.add(ctx, w, v) })
		}
		if err := group.Wait(); err != nil {
			return sample, err
		}
		if op > 0 {
			took += time.Since(began)
		}
		if err := check(vectors, sums, bound); err != nil {
			return sample, err
		}
	}
	bytes, frames, repeated, err := a.sent(ctx)
	each := float64(cfg.Operations)
	return Sample{
		Seconds: took.Seconds() / each, Bytes: float64(bytes-before[0]) / each,
		Repeated: experiment.Quotient(float64(repeated-before[2]), float64(frames-before[1])),
	}, err
}

// openLink opens a UDP link at a host: unlike AF_XDP sockets, it is slowed down by the host's rate.
func openLink(bed *testbed.Bed, host int) (l link.Link, err error) {
	at := bed.Host(host)
	err = at.Do(func() error {
		l, err = link.OpenUDP(netip.AddrPortFrom(at.IP, wire.DefaultPort))
		return err
	})
	return l, err
}
