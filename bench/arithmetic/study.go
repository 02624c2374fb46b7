package arithmetic

import (
	"context"

	"github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/report"
)

// Numbers is the part of a [Study] that [Run] carries out.
const Numbers = "numbers"

// Parts returns all parts of a [Study]. Those but Numbers are tests of package
// bench/aggregator.
func Parts() []string {
	return []string{Numbers, string(aggregator.Throughput), string(aggregator.Negotiation)}
}

// Study is what 'libra lut study' finds out: the precision and memory of the
// arithmetics, and their pace. It marshals to one JSON object with the fields of
// both reports, as far as they were asked for.
type Study struct {
	*Report
	Aggregator *aggregator.Report `json:"aggregator,omitempty"`
}

// RunStudy carries out parts of a study. What the process lacks the privileges for
// is left out, with a note. When ctx is done, RunStudy returns what it has and the
// cause.
func RunStudy(ctx context.Context, c Config, parts []string, progress harness.Progress) (*Study, error) {
	if err := harness.Known("test", Parts(), parts...); err != nil {
		return nil, err
	}
	measured := aggregator.Defaults()
	measured.Tests, measured.SkipDenied, measured.Progress = nil, true, progress
	var s Study
	for _, part := range parts {
		if part != Numbers {
			measured.Tests = append(measured.Tests, aggregator.Test(part))
			continue
		}
		var err error
		if s.Report, err = Run(c); err != nil {
			return nil, err
		}
	}
	if len(measured.Tests) == 0 {
		return &s, nil
	}
	var err error
	s.Aggregator, err = aggregator.Run(ctx, measured)
	return &s, err
}

func (s *Study) reports() (all []harness.Report) {
	if s.Report != nil {
		all = append(all, s.Report)
	}
	if s.Aggregator != nil {
		all = append(all, s.Aggregator)
	}
	return all
}

// Print writes both reports for people.
func (s *Study) Print(out *report.Printer) {
	for _, r := range s.reports() {
		r.Print(out)
	}
}

// Charts returns those of both reports.
func (s *Study) Charts() (all []harness.Chart) {
	for _, r := range s.reports() {
		all = append(all, r.Charts()...)
	}
	return all
}
