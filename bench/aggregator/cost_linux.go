package aggregator

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
)

const (
	// testRun is the duration of one test run by default.
	testRun = 15 * time.Millisecond
	// warmUp is the frames that tell how many make a test run. The kernel takes
	// tens of milliseconds to begin one, so that there is none before each
	// measurement: caches are warm after a small part of it.
	warmUp = 2000
)

// openPlane loads the XDP program; it is attached nowhere.
func openPlane() (*bpf.Aggregator, error) { return bpf.Open(bpf.Options{Address: aggregatorEnd.IP}) }

// cost measures mode after mode. What is compared takes turns: the arithmetics
// and frame lengths of a mode with a number of hot parameters.
func (h *harness) cost(ctx context.Context) (err error) {
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

func (h *harness) costGroup(ctx context.Context, p *bpf.Aggregator, m plane.Mode, hot int) (err error) {
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
	if err := h.takeTurns(ctx, g, nil); err != nil {
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

// takeTurns measures every job once in each round. others, if not nil, is
// called in every round, too.
func (h *harness) takeTurns(ctx context.Context, g group, others func() error) error {
	for _, b := range g {
		ns, err := b.measure(warmUp)
		if err != nil {
			return err
		}
		b.count = max(warmUp, int(float64(h.cfg.duration(testRun))/max(ns, 1)))
	}
	for range h.cfg.Rounds {
		for _, b := range g {
			if err := h.step(ctx, "%s, %s, %d stripes, %d hot", b.result.Mode, b.result.Arithmetic, b.result.Stripes, b.result.Hot); err != nil {
				return err
			}
			ns, err := b.measure(b.count)
			if err != nil {
				return err
			}
			b.result.Samples = append(b.result.Samples, ns)
		}
		if others != nil {
			if err := others(); err != nil {
				return err
			}
		}
	}
	return nil
}
