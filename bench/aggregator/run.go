package aggregator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	plane "github.com/libra-ina/libra/aggregator"
)

// Run measures. When ctx is done, Run returns what it has and the cause. Cost
// and Throughput, and AF_XDP in Negotiation, need root; see Config.SkipDenied.
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &harness{cfg: cfg, report: newReport(cfg.Rounds)}
	defer h.report.finish()
	for _, t := range cfg.Tests {
		switch t {
		case Cost:
			h.total += h.costSteps()
		case Throughput:
			h.total += h.throughputSteps()
		case Negotiation:
			h.total += h.negotiationSteps()
		}
	}
	for _, t := range cfg.Tests {
		var err error
		switch t {
		case Cost:
			err = h.skip(string(Cost), h.costSteps(), h.cost(ctx))
		case Throughput:
			err = h.skip(string(Throughput), h.throughputSteps(), h.throughput(ctx))
		case Negotiation:
			err = h.negotiation(ctx)
		}
		if err != nil {
			return h.report, err
		}
	}
	return h.report, nil
}

// harness is a run.
type harness struct {
	cfg         Config
	report      *Report
	done, total int // measurements
}

// step announces a measurement, or returns why there must be none.
func (h *harness) step(ctx context.Context, format string, args ...any) error {
	if ctx.Err() != nil {
		return fmt.Errorf("aggregator benchmark: interrupted: %w", context.Cause(ctx))
	}
	if h.cfg.Progress != nil {
		h.cfg.Progress(Step{Done: h.done, Total: h.total, What: fmt.Sprintf(format, args...)})
	}
	h.done++
	return nil
}

// skip notes what could not be measured for want of privileges, if that is
// permitted, and returns every other error.
func (h *harness) skip(what string, steps int, err error) error {
	if !h.cfg.SkipDenied || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	h.report.Unavailable = append(h.report.Unavailable, Unavailable{What: what, Reason: err.Error()})
	h.total -= steps
	return nil
}

func (h *harness) costSteps() int {
	c := h.cfg
	return len(c.Modes) * len(c.Hot) * len(c.Arithmetics) * len(c.Stripes) * c.Rounds
}

func (h *harness) throughputSteps() int {
	c := h.cfg
	programs := (1 + len(c.Exponents)) * len(c.Arithmetics) * len(c.Sweep)
	servers := 0
	if slices.Contains(c.Arithmetics, plane.Exact) {
		servers = len(c.Exponents) * (1 + len(c.Sweep))
	}
	return (programs + servers) * c.Rounds
}

func (h *harness) negotiationSteps() int {
	c := h.cfg
	return len(c.Backends) * len(c.Workers) * len(c.Arithmetics) * c.Rounds
}
