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
	if err := h.sweep(ctx, p, uniform, zipf.New(aggregator.PageSlots, 0), nil); err != nil {
		return err
	}
	var server *ps.Store
	if slices.Contains(h.cfg.Arithmetics, aggregator.Exact) {
		if server, err = newServer(); err != nil {
			return err
		}
	}
	for _, s := range h.cfg.Exponents {
		if err := h.sweep(ctx, p, fmt.Sprintf("Zipf %.2f", s), zipf.New(allKeys, s), server); err != nil {
			return err
		}
	}
	return nil
}

// sweep measures one distribution, and what the server does if there is one.
func (h *run) sweep(ctx context.Context, p *bpf.Aggregator, name string, d *zipf.Distribution,
	server *ps.Store) (err error) {
	rng := rand.New(rand.NewPCG(2, 0))
	var g group
	defer func() { err = errors.Join(err, experiment.Close(g...)) }()
	for _, hot := range h.cfg.Sweep {
		for _, a := range h.cfg.Arithmetics {
			job := aggregator.JobConfig{Mode: aggregator.Combine, Arithmetic: a, Slots: hot, MaxStripes: wire.DefaultStripes}
			if err := g.add(p, frames{job, rng, func() int { return d.DrawFrom(rng, 0, hot) }}); err != nil {
				return err
			}
		}
	}
	var systems []System
	var loads []*experiment.Subject[float64] // the server's, one for each system
	if server != nil {
		for _, hot := range slices.Concat([]int{0}, h.cfg.Sweep) {
			systems = append(systems, System{Distribution: name, Hot: hot, HotShare: d.Share(hot)})
			l := newLoad(d, hot, rng)
			loads = append(loads, &experiment.Subject[float64]{
				What:    fmt.Sprintf("server, %d hot, %s", hot, name),
				Measure: func(context.Context) (float64, error) { return l.rate(server) },
			})
		}
	}
	if err := h.measure(ctx, g, loads...); err != nil {
		return err
	}
	programs := map[int][]float64{} // with exact arithmetic, by number of hot parameters
	for _, b := range g {
		pairs := experiment.Pick(b.result.Samples, func(ns float64) float64 {
			return experiment.Quotient(1e9*float64(b.result.Pairs), ns)
		})
		if b.result.Arithmetic == aggregator.Exact.String() {
			programs[b.result.Hot] = pairs
		}
		h.report.Rates = append(h.report.Rates, Rate{
			Distribution: name, Arithmetic: b.result.Arithmetic, Hot: b.result.Hot, Pairs: experiment.SpreadOf(pairs),
		})
	}
	for i := range systems {
		s := &systems[i]
		s.Server = experiment.SpreadOf(loads[i].Samples)
		for round, server := range loads[i].Samples {
			program := 0.0
			if s.Hot > 0 {
				program = programs[s.Hot][round]
			}
			s.Samples = append(s.Samples, bound(s.HotShare, program, server))
		}
	}
	h.report.Systems = append(h.report.Systems, systems...)
	return nil
}

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
