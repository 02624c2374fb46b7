// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sort"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/telemetry"
)

// savingSteps are the batches that each worker pushes and pulls before a harvest and a commit.
const savingSteps = 32

// serverCost is what a server spends on some pushes and pulls, in nanoseconds.
type serverCost struct {
	push, pull float64 // server process of the frames that are measured
	cpu        float64 // of its thread, harvest and commit included
	hot        float64 // share of the pushed rows that are hot
	frames     uint64  // of pushes, that are measured
}

// measureSaving has workers push and pull the same rows with a hot set and without one.
func measureSaving(ctx context.Context, cfg *Config) (s SavingSample, err error) {
	with, err := measureServer(ctx, cfg, hottest())
	if err != nil {
		return s, err
	}
	without, err := measureServer(ctx, cfg, []uint64{allRows}) // no worker pushes that row
	if err != nil {
		return s, err
	}
	saved := func(with, without float64) float64 { return 1 - with/without }
	return SavingSample{
		Predicted: with.hot, PushProcess: saved(with.push, without.push),
		Process: saved(with.push+with.pull, without.push+without.pull), CPU: saved(with.cpu, without.cpu),
	}, nil
}

// measureServer measures a server whose job has these hot rows.
func measureServer(ctx context.Context, cfg *Config, hot []uint64) (cost serverCost, err error) {
	job, err := local.Open(ctx, local.Config{
		Dim: rowDim, Hot: hot, Workers: cfg.Workers, Optimizer: ps.Optimizer{Method: ps.SGD}, Sample: cfg.Sample,
		Look: -1, // the time of polling is not that of frames
	})
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	thread := 0
	if err := job.Server().Do(ctx, func() {
		runtime.LockOSThread() // until the goroutine ends
		thread = unix.Gettid()
	}); err != nil {
		return cost, err
	}
	before, err := sys.TaskTime(thread)
	if err != nil {
		return cost, err
	}
	rows, random := zipf.New(allRows, exponent), rand.New(rand.NewPCG(1, 1))
	pushed, pushedHot := 0, 0
	for range savingSteps {
		workers, step := errgroup.WithContext(ctx)
		for i := range cfg.Workers {
			keys := drawBatch(random, rows, cfg.Batch)
			pushed += len(keys)
			pushedHot += sort.Search(len(keys), func(at int) bool { return keys[at] >= hotRows })
			values := rand.New(rand.NewPCG(random.Uint64(), 0))
			workers.Go(func() error { return pushAndPull(step, job.Worker(i), keys, values) })
		}
		if err := workers.Wait(); err != nil {
			return cost, err
		}
	}
	if err := job.Commit(ctx); err != nil {
		return cost, err
	}
	after, err := sys.TaskTime(thread)
	if err != nil {
		return cost, err
	}
	cost.cpu, cost.hot = float64(after-before), float64(pushedHot)/float64(pushed)
	for _, series := range job.Server().Recorder().Series() {
		if series.Part != telemetry.ServerProcess {
			continue
		}
		switch series.Op {
		case telemetry.Cold:
			cost.push += float64(series.Sum)
			cost.frames += series.Count()
		case telemetry.Pull:
			cost.pull += float64(series.Sum)
		}
	}
	return cost, nil
}
