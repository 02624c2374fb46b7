// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// allKeys is the number of parameters, hot and cold.
const allKeys = 1 << 20

const uniform = "uniform"

// throughput measures distribution after distribution. All numbers of hot
// parameters of one take turns, with the server.
func (h *run) throughput(ctx context.Context) (err error) {
	p, err := openPlane()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := h.sweep(ctx, p, uniform, nil, nil); err != nil {
		return err
	}
	var s *servers
	if slices.Contains(h.cfg.Arithmetics, aggregator.Exact) {
		s = &servers{}
		if s.alone, err = newServer(); err != nil {
			return err
		}
		if s.harvested, err = newServer(); err != nil {
			return err
		}
	}
	for _, e := range h.cfg.Exponents {
		if err := h.sweep(ctx, p, fmt.Sprintf("Zipf %.2f", e), zipf.New(allKeys, e), s); err != nil {
			return err
		}
	}
	return nil
}

// servers are the stores whose work is measured: for cold pairs, and for harvests, which commit.
type servers struct{ alone, harvested *ps.Store }

// sweep measures one distribution (nil: all ranks alike), and what the server does if there is one.
func (h *run) sweep(ctx context.Context, p *bpf.Aggregator, name string, d *zipf.Distribution,
	s *servers) (err error) {
	rng := rand.New(rand.NewPCG(2, 0))
	var g group
	defer func() { err = errors.Join(err, experiment.Close(g...)) }()
	for _, hot := range h.cfg.Sweep {
		draw := func() int { return rng.IntN(hot) }
		if d != nil {
			draw = func() int { return d.DrawFrom(rng, 0, hot) }
		}
		for _, a := range h.cfg.Arithmetics {
			job := aggregator.JobConfig{Mode: aggregator.Combine, Arithmetic: a, Slots: hot, MaxStripes: wire.DefaultStripes}
			if err := g.add(p, frames{job: job, rng: rng, draw: draw}); err != nil {
				return err
			}
		}
	}
	var all []*together
	defer func() { err = errors.Join(err, experiment.Close(all...)) }()
	var loads []*experiment.Subject[float64]
	if s != nil {
		for _, hot := range slices.Concat([]int{0}, h.cfg.Sweep) {
			t := &together{System: System{Distribution: name, Hot: hot, HotShare: d.Share(hot)}, keys: d, rng: rng}
			all = append(all, t)
			l := newLoad(d, min(hot, allKeys-1), rng) // where all keys are hot its rate does not count
			t.server = &experiment.Subject[float64]{
				What:    fmt.Sprintf("server, %d hot, %s", hot, name),
				Measure: func(context.Context) (float64, error) { return l.rate(s.alone) },
			}
			loads = append(loads, t.server)
			if hot == 0 {
				continue
			}
			if t.harvests, err = newHarvests(ctx, hot, s.harvested); err != nil {
				return err
			}
			t.harvested = &experiment.Subject[float64]{
				What:    fmt.Sprintf("harvests, %d hot, %s", hot, name),
				Measure: func(ctx context.Context) (float64, error) { return t.harvest(ctx, h.cfg.Harvest) },
			}
			loads = append(loads, t.harvested)
		}
	}
	programs, err := h.measure(ctx, g, loads, func(programs []*experiment.Subject[float64]) {
		for i, b := range g {
			if at := slices.IndexFunc(all, func(t *together) bool { return t.Hot == b.result.Hot }); at >= 0 &&
				b.result.Arithmetic == aggregator.Exact.String() {
				all[at].program, all[at].pairs = programs[i], float64(b.result.Pairs)
			}
		}
	})
	if err != nil {
		return err
	}
	for i, b := range g {
		h.report.Rates = append(h.report.Rates, Rate{
			Distribution: name, Arithmetic: b.result.Arithmetic, Hot: b.result.Hot,
			Pairs: experiment.SpreadOf(experiment.Pick(programs[i].Samples, func(ns float64) float64 {
				return experiment.Quotient(1e9*float64(b.result.Pairs), ns)
			})),
		})
	}
	for _, t := range all {
		h.report.Systems = append(h.report.Systems, t.finish(h.cfg.Harvest))
	}
	return nil
}

// together measures aggregator and server with a number of hot parameters.
type together struct {
	System
	keys    *zipf.Distribution
	rng     *rand.Rand
	program *experiment.Subject[float64] // ns a frame; nil without hot parameters, like all below
	pairs   float64                      // of a frame
	server  *experiment.Subject[float64] // pairs a second

	harvests  *harvests
	harvested *experiment.Subject[float64] // ns a harvest
	sums      []float64                    // in the harvests of each round
}

// bound returns the rate of both in a round, without harvests.
func (t *together) bound(round int) float64 {
	program := 0.0
	if t.program != nil {
		program = experiment.Quotient(1e9*t.pairs, t.program.Samples[round])
	}
	return bound(t.HotShare, program, t.server.Samples[round])
}

// harvest measures a harvest after as many updates as both take in a period without harvests: with
// them they take fewer, and there are no more sums.
func (t *together) harvest(ctx context.Context, period time.Duration) (float64, error) {
	rate := t.bound(len(t.server.Samples) - 1)
	t.sums = append(t.sums, float64(t.harvests.plane.fill(t.keys, rate*period.Seconds(), t.rng)))
	return t.harvests.measure(ctx)
}

// finish returns what was measured.
func (t *together) finish(period time.Duration) System {
	t.Server = experiment.SpreadOf(t.server.Samples)
	for round := range t.server.Samples {
		rate, harvest := t.bound(round), 0.0
		if t.harvested != nil {
			harvest = t.harvested.Samples[round]
		}
		t.Samples = append(t.Samples, rate)
		t.HarvestedSamples = append(t.HarvestedSamples, rate*max(0, 1-harvest/float64(period)))
	}
	if t.harvested != nil {
		t.Harvest, t.Sums = experiment.SpreadOf(t.harvested.Samples), experiment.Median(t.sums)
	}
	return t.System
}

// Close ends the harvests.
func (t *together) Close() error { return experiment.Close(t.harvests) }

func newServer() (*ps.Store, error) {
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp})
	if err != nil {
		return nil, err
	}
	keys, grads := make([]uint64, 1024), make([]float32, 1024)
	for first := 0; first < allKeys; first += len(keys) {
		for i := range keys {
			keys[i] = keyOf(first + i)
		}
		if err := store.Push(keys, grads); err != nil {
			return nil, err
		}
	}
	return store, nil
}

// keyOf scatters ranks as hashed features are.
func keyOf(rank int) uint64 { return uint64(rank+1) * 0x9e3779b97f4a7c15 }

// load is COLD payloads, and the pairs in them.
type load struct {
	payloads []wire.Rows
	pairs    int
}

// loadFrames makes a load of 240,000 pairs, more than caches hold.
const loadFrames = 2000

// newLoad draws pairs whose keys are not among the first hot ones.
func newLoad(d *zipf.Distribution, hot int, rng *rand.Rand) (l load) {
	const payload = 1472 // an MTU of 1500 bytes
	n := wire.ColdCap(payload, 1)
	grad := make([]float32, 1)
	for range loadFrames {
		rows := wire.PutRows(make([]byte, wire.ColdLen(n, 1)), wire.TypeCold, n, 1)
		for i := range n {
			grad[0] = float32(rng.NormFloat64()) * 1e-3
			rows.SetKey(i, keyOf(d.DrawFrom(rng, hot, allKeys)))
			rows.SetRow(i, grad)
		}
		l.payloads = append(l.payloads, rows)
		l.pairs += n
	}
	return l
}

func (l load) rate(server *ps.Store) (float64, error) {
	start := time.Now()
	for _, rows := range l.payloads {
		if err := server.Accumulate(rows); err != nil {
			return 0, err
		}
	}
	return experiment.Quotient(float64(l.pairs), time.Since(start).Seconds()), nil
}
