// SPDX-License-Identifier: Apache-2.0

package tenants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
)

// Load of a tenant: a batch of distinct hot keys, and a pause. A tenant that
// pushed as fast as it can would be a flood itself.
const (
	slots      = 20_000
	batch      = 500
	pause      = time.Millisecond
	silence    = 20 * time.Second
	unitExp    = aggregator.DefaultFixedExp // gradients are multiples of 2^unitExp
	maxUnits   = 100
	exactShift = unitExp - fixedpoint.DefaultExp // to units of exact arithmetic
)

// tenantConfig is a job that pushes and is harvested.
type tenantConfig struct {
	Job        uint32
	Mode       aggregator.Mode
	Arithmetic aggregator.Arithmetic
	Harvest    time.Duration
}

// tenant is a running job: its parameter server's harvest, and its one worker.
type tenant struct {
	*childConfig
	*tenantConfig
	client pb.AggregatorClient
	hot    *packer.HotSet
	want   [slots]int64 // units pushed, by rank
	pairs  uint64

	mu       sync.Mutex
	sums     [slots]int64 // harvested
	arrived  []time.Time  // when harvests came
	harvests uint64
}

func (c *childConfig) tenant(ctx context.Context) (err error) {
	keys := make([]uint64, slots)
	for i := range keys {
		keys[i] = uint64(i)
	}
	t := &tenant{childConfig: c, tenantConfig: c.Tenant}
	if t.hot, err = packer.NewHotSet(1, keys, nil, packer.Meta{}); err != nil {
		return err
	}
	modes := map[aggregator.Mode]pb.Mode{aggregator.Combine: pb.Mode_MODE_COMBINE,
		aggregator.FetchAdd: pb.Mode_MODE_FETCHADD}
	fingerprint := t.hot.Fingerprint()
	spec := &pb.JobSpec{
		Job: t.Job, Mode: modes[t.Mode], Arithmetic: control.ArithmeticMessage(t.Arithmetic), Slots: slots,
		HotSet: fingerprint[:], HarvestPeriodUs: uint32(t.Harvest / time.Microsecond), ServerMacs: [][]byte{t.Self.MAC[:]},
	}
	return c.WithJob(ctx, spec, func(ctx context.Context, client pb.AggregatorClient, job *control.Owned) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		t.client = client
		harvester := control.NewHarvester(job, t.apply, slog.New(slog.DiscardHandler))
		go func() { cancel(harvester.Run(ctx)) }()
		server := t.Self // which nothing is sent to, since all keys are hot
		server.IP = server.IP.Next()
		worker, err := t.StartWorker(ctx, client, transport.WorkerConfig{
			Job: uint16(t.Job), Sender: 1, HotSet: t.hot, Mode: t.Mode, Arithmetic: t.Arithmetic,
			Server: server, Flow: retransmit.Config{Silence: silence},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, worker.Close()) }()
		return whenAsked(ctx, func(ctx context.Context) (*tenantResult, error) { return t.run(ctx, worker, harvester) })
	})
}

func (t *tenant) run(ctx context.Context, worker *transport.Worker, harvester *control.Harvester) (*tenantResult,
	error) {
	if err := t.push(ctx, worker); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	result, err := t.result(ctx)
	if err != nil {
		return nil, err
	}
	if err := harvester.Now(ctx); err != nil {
		return nil, err
	}
	return result, t.check()
}

// push pushes batches until the time is over, and returns when all of them are
// acknowledged.
func (t *tenant) push(ctx context.Context, w *transport.Worker) error {
	rng := rand.New(rand.NewPCG(uint64(t.Job), 0))
	keys, grads, sums := make([]uint64, batch), make([]float32, batch), make([]float32, batch)
	for end := time.Now().Add(t.Duration); time.Now().Before(end); {
		first, stride := rng.IntN(slots), 1+2*rng.IntN(20) // distinct keys
		for i := range keys {
			rank := (first + i*stride) % slots
			n := int64(rng.IntN(2*maxUnits+1) - maxUnits)
			t.want[rank] += n
			keys[i], grads[i] = uint64(rank), float32(math.Ldexp(float64(n), unitExp))
		}
		t.pairs += batch
		var err error
		if t.Mode == aggregator.FetchAdd {
			err = w.PushSum(ctx, keys, grads, sums)
		} else {
			_, err = w.Push(ctx, keys, grads)
		}
		if err == nil {
			err = experiment.Sleep(ctx, pause)
		}
		if err != nil {
			return err
		}
	}
	return w.Flush(ctx)
}

func (t *tenant) apply(h *control.Harvest) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.Number <= t.harvests {
		return nil // sent again
	}
	t.harvests = h.Number
	t.arrived = append(t.arrived, time.Now())
	for i, rank := range h.Ranks {
		t.sums[rank] += h.Sums[i]
	}
	return nil
}

func (t *tenant) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	shift := 0
	if t.Arithmetic == aggregator.Exact {
		shift = exactShift
	}
	for rank, want := range t.want {
		if got := t.sums[rank]; got != want<<shift {
			return fmt.Errorf("tenants: job %d, slot %d: sum %d, pushed %d", t.Job, rank, got, want<<shift)
		}
	}
	return nil
}

// tenantResult is what a tenant answers: about itself, and what the switch had
// dropped and refused by then.
type tenantResult struct {
	Job
	Dropped, Refused, Throttled uint64
}

func refused(counters map[string]uint64) (total uint64) {
	for name, n := range counters {
		if strings.HasPrefix(name, "refused_") {
			total += n
		}
	}
	return total
}

// result sums up the job, with the harvests as the switch timed them.
func (t *tenant) result(ctx context.Context) (*tenantResult, error) {
	stats, err := t.client.Stats(ctx, &pb.StatsRequest{})
	if err != nil {
		return nil, access.CallError(access.SwitchDaemon, "statistics", err)
	}
	r := &tenantResult{Job: Job{Job: int(t.Job), Mode: t.Mode.String(), Arithmetic: t.Arithmetic.String(), Pairs: t.pairs}}
	r.Dropped, r.Refused, r.Throttled = stats.Counters["bad_checksum"], refused(stats.Counters),
		stats.Counters["throttled"]
	for _, j := range stats.Jobs {
		r.Refused += refused(j.Counters)
		r.Throttled += j.Counters["throttled"]
		if j.Job == t.Job {
			interval := j.HarvestInterval
			r.Harvests, r.Held = j.Harvests, time.Duration(j.HarvestHeld.MeanNs)
			r.Last, r.Mean, r.Max = time.Duration(interval.LastNs), time.Duration(interval.MeanNs), time.Duration(interval.MaxNs)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.arrived) < 2 {
		return nil, fmt.Errorf("tenants: job %d: %d harvests, want two at least", t.Job, len(t.arrived))
	}
	between := make([]time.Duration, len(t.arrived)-1)
	for i := range between {
		between[i] = t.arrived[i+1].Sub(t.arrived[i])
	}
	r.P50, r.P95 = experiment.Quantile(between, 0.5), experiment.Quantile(between, 0.95)
	return r, nil
}
