package aggregator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bpf"
)

// warmUp is the number of frames that tell how many make a test run. The kernel
// takes tens of milliseconds to begin one, so that there is none before each
// measurement: caches are warm after a small part of it.
const warmUp = 2000

// openPlane loads the XDP program; it is attached nowhere.
func openPlane() (*bpf.Aggregator, error) { return bpf.Open(bpf.Options{Address: aggregatorEnd.IP}) }

// cost measures mode after mode. What is compared takes turns: the arithmetics
// and frame lengths of a mode with a number of hot parameters.
func (h *run) cost(ctx context.Context) (err error) {
	p, err := openPlane()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for _, m := range h.cfg.Modes {
		for _, hot := range h.cfg.Hot {
			if err := h.costGroup(ctx, p, m, hot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *run) costGroup(ctx context.Context, p *bpf.Aggregator, m plane.Mode, hot int) (err error) {
	rng := rand.New(rand.NewPCG(1, uint64(hot)))
	var g group
	defer func() { err = errors.Join(err, g.close()) }()
	for _, a := range h.cfg.Arithmetics {
		for _, stripes := range h.cfg.Stripes {
			if err := g.add(p, a, m, stripes, hot, func() int { return rng.IntN(hot) }, rng); err != nil {
				return err
			}
		}
	}
	if err := h.measure(ctx, g); err != nil {
		return err
	}
	for _, b := range g {
		h.report.add(b.result)
	}
	return nil
}

// group is jobs that take turns.
type group []*bench

// add starts a job.
func (g *group) add(p *bpf.Aggregator, a plane.Arithmetic, m plane.Mode, stripes, hot int, draw func() int, rng *rand.Rand) error {
	b, err := newBench(p, uint16(jobID+len(*g)), a, m, stripes, hot, draw, rng)
	if err != nil {
		return err
	}
	*g = append(*g, b)
	return nil
}

func (g group) close() error {
	var errs []error
	for _, b := range g {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}

// measure measures jobs in turns, and others with them.
func (h *run) measure(ctx context.Context, g group, others ...*harness.Subject[float64]) error {
	var subjects []*harness.Subject[float64]
	for _, b := range g {
		ns, err := b.measure(warmUp)
		if err != nil {
			return err
		}
		count := max(warmUp, int(float64(h.cfg.duration(RunTime))/max(ns, 1)))
		subjects = append(subjects, &harness.Subject[float64]{
			What:    fmt.Sprintf("%s, %s, %d stripes, %d hot", b.result.Mode, b.result.Arithmetic, b.result.Stripes, b.result.Hot),
			Measure: func(context.Context) (float64, error) { return b.measure(count) },
		})
	}
	if err := takeTurns(ctx, h, append(subjects, others...)); err != nil {
		return err
	}
	for i, b := range g {
		b.result.Samples = subjects[i].Samples
	}
	return nil
}
