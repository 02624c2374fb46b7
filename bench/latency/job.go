// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/breakdown"
	"github.com/libra-ina/libra/transport"
)

// The job's rows, whose keys follow Zipf's distribution; the first of them are hot.
const (
	rowDim   = 8
	allRows  = 200_000
	hotRows  = 2000
	exponent = 1.05
)

// Shares are the parts of the mean time of an operation's frames. They add up to 1.
type Shares struct {
	Network       float64 `json:"network"` // with the aggregator, in hot frames
	ServerQueue   float64 `json:"server_queue"`
	ServerProcess float64 `json:"server_process"`
	WorkerQueue   float64 `json:"worker_queue"`
	WorkerProcess float64 `json:"worker_process"`
}

// JobSample is one measurement of a job: of hot frames and of cold ones, with which workers push,
// and of those with which they pull.
type JobSample struct {
	Hot  Shares `json:"hot"`
	Cold Shares `json:"cold"`
	Pull Shares `json:"pull"`
	// Joined is the share of frames to the server that were sent once and whose two halves were found.
	Joined float64 `json:"joined"`
	// Arithmetic is the share of a push's server process that the paper takes for arithmetic (§3.2):
	// what it exceeds that of a pull by, here of as many bytes of rows.
	Arithmetic float64 `json:"arithmetic"`
}

// measureJob lets workers push and pull for some time, over sockets of this machine, and joins what
// both ends have measured.
func measureJob(ctx context.Context, cfg *Config, times *breakdown.Breakdown) (s JobSample, err error) {
	job, err := local.Open(ctx, local.Config{
		Dim: rowDim, Hot: hottest(), Workers: cfg.Workers, Optimizer: ps.Optimizer{Method: ps.SGD}, Sample: cfg.Sample,
	})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	rows := zipf.New(allRows, exponent)
	join := telemetry.NewJoiner()
	until := time.Now().Add(cfg.Duration)
	workers, ctx := errgroup.WithContext(ctx)
	for i := range cfg.Workers {
		workers.Go(func() error {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for time.Now().Before(until) {
				if err := pushAndPull(ctx, job.Worker(i), drawBatch(random, rows, cfg.Batch), random); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := workers.Wait(); err != nil {
		return s, err
	}
	for i := range cfg.Workers {
		records, _ := job.Worker(i).Recorder().Records(nil)
		for _, r := range records {
			join.AddWorker(r)
		}
	}
	records, _ := job.Server().Recorder().Records(nil)
	for _, r := range records {
		join.AddServer(r)
	}
	all := join.EndRound(nil, true)
	for i := range all {
		times.Add(&all[i])
	}
	return sampleOf(all)
}

// hottest returns the keys of the hot rows.
func hottest() []uint64 {
	keys := make([]uint64, hotRows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	return keys
}

// drawBatch draws rows and returns their keys, ascending and each once.
func drawBatch(random *rand.Rand, rows *zipf.Distribution, batch int) []uint64 {
	keys := make([]uint64, batch)
	for i := range keys {
		keys[i] = uint64(rows.Draw(random))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// pushAndPull pushes a batch and pulls its rows.
func pushAndPull(ctx context.Context, w *transport.Worker, keys []uint64, random *rand.Rand) error {
	values := make([]float32, len(keys)*rowDim)
	for i := range values {
		values[i] = random.Float32()
	}
	ticket, err := w.Push(ctx, keys, values)
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if err == nil {
		err = w.Pull(ctx, keys, values)
	}
	return err
}

// sampleOf returns the shares of whole rows.
func sampleOf(all []telemetry.Row) (s JobSample, err error) {
	var parts [3]Shares
	var totals, process, size [3]float64
	whole, once := 0.0, 0.0
	for i := range all {
		r := &all[i]
		at := slices.Index([]telemetry.Op{telemetry.Hot, telemetry.Cold, telemetry.Pull}, r.Op)
		if at < 0 || r.State == telemetry.Resent {
			continue
		}
		if r.Server != telemetry.NoServer {
			once++
		}
		if r.State != telemetry.Whole {
			continue
		}
		if r.Server != telemetry.NoServer {
			whole++
			process[at] += float64(r.ServerProcess)
			size[at] += float64(max(r.Request, r.Response)) // rows are in one of them
		}
		p := &parts[at]
		p.Network += float64(r.Network)
		p.ServerQueue += float64(r.ServerQueue)
		p.ServerProcess += float64(r.ServerProcess)
		p.WorkerQueue += float64(r.Queue)
		p.WorkerProcess += float64(r.Process)
		totals[at] += float64(r.Total)
	}
	for i, total := range totals {
		if total == 0 {
			return s, fmt.Errorf("of %d frames none is of each kind: choose a smaller --sample or a longer --duration", len(all))
		}
		for _, v := range parts[i].all() {
			*v /= total
		}
	}
	push, pull := process[1]/size[1], process[2]/size[2]
	return JobSample{Hot: parts[0], Cold: parts[1], Pull: parts[2], Joined: experiment.Quotient(whole, once),
		Arithmetic: (push - pull) / push}, nil
}

// all returns the parts in the order of partNames.
func (s *Shares) all() []*float64 {
	return []*float64{&s.Network, &s.ServerQueue, &s.ServerProcess, &s.WorkerQueue, &s.WorkerProcess}
}

var partNames = []string{"network", "server queue", "server process", "worker queue", "worker process"}
