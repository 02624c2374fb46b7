package aggregator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
)

// Run measures. When ctx is done, Run returns what it has and the cause. Cost
// and Throughput, and AF_XDP in Negotiation, need root; see Config.SkipDenied.
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	h := &run{cfg: cfg, report: newReport(cfg.Rounds), steps: harness.Steps{Progress: cfg.Progress}}
	defer h.report.finish()
	var parts []part
	for _, t := range cfg.Tests {
		switch t {
		case Cost:
			parts = append(parts, part{string(Cost), h.costSteps(), h.cost})
		case Throughput:
			parts = append(parts, part{string(Throughput), h.throughputSteps(), h.throughput})
		case Negotiation:
			for _, b := range cfg.Backends {
				parts = append(parts, part{
					fmt.Sprintf("%s over %v", Negotiation, b), len(cfg.Workers) * len(cfg.Arithmetics) * cfg.Rounds,
					func(ctx context.Context) error { return h.negotiateOver(ctx, b) },
				})
			}
		}
	}
	for _, p := range parts {
		h.steps.Total += p.steps
	}
	for _, p := range parts {
		if err := h.skip(p, p.run(ctx)); err != nil {
			return h.report, err
		}
	}
	return h.report, nil
}

// run is what one call of Run does.
type run struct {
	cfg    Config
	report *Report
	steps  harness.Steps
}

// part is what is measured or, for want of privileges, skipped as one.
type part struct {
	what  string
	steps int
	run   func(context.Context) error
}

func takeTurns[S any](ctx context.Context, h *run, subjects []*harness.Subject[S]) error {
	if err := harness.TakeTurns(ctx, harness.Turns{Rounds: h.cfg.Rounds, Steps: &h.steps}, subjects); err != nil {
		return fmt.Errorf("aggregator benchmark: %w", err)
	}
	return nil
}

// skip notes what could not be measured for want of privileges, if that is
// permitted, and returns every other error.
func (h *run) skip(p part, err error) error {
	if !h.cfg.SkipDenied || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	h.report.Unavailable = append(h.report.Unavailable, harness.Unavailable{What: p.what, Reason: err.Error()})
	h.steps.Total -= p.steps
	return nil
}

func (h *run) costSteps() int {
	c := h.cfg
	return len(c.Modes) * len(c.Hot) * len(c.Arithmetics) * len(c.Stripes) * c.Rounds
}

func (h *run) throughputSteps() int {
	c := h.cfg
	programs := (1 + len(c.Exponents)) * len(c.Arithmetics) * len(c.Sweep)
	servers := 0
	if slices.Contains(c.Arithmetics, plane.Exact) {
		servers = len(c.Exponents) * (1 + len(c.Sweep))
	}
	return (programs + servers) * c.Rounds
}
