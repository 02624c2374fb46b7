// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/study/arithmetic"
)

func newLut() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lut",
		Short: "Study the arithmetics: table lookup, scaled int32, float32, exact",
	}
	cmd.AddCommand(newLutStudy())
	return cmd
}

func newLutStudy() *cobra.Command {
	var (
		c     = arithmetic.Defaults()
		tests []string
		out   results
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Measure the precision of sums, and the memory and speed of each arithmetic, next to the paper's figures",
		Long: `Prints the precision of pairwise sums on gradients of a real training and on
uniform numbers (the paper's Table 2), the error of sums of 10 to 1,000,000 terms,
and the memory that a switch needs (§5.7): numbers. Then it measures aggregation
throughput against the number of hot parameters (Figures 13 and 14): throughput;
and the delay of a scale's negotiation (Figure 17): negotiation. These are parts
of 'libra bench aggregator', which has more options for them. They take about two
minutes; without root, parts that need it are skipped, with a note.`,
		Example: `  libra lut study --data frappe.libfm.gz --out plots
  libra lut study --measure numbers --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*LutStudy, error) {
				return runLutStudy(cmd.Context(), c, tests, p)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "measure", lutStudyParts(), "what to study")
	choices(cmd, "measure", lutStudyParts()...)
	f.StringVar(&c.Data, "data", "", "`file` in libfm format to train on for gradients (default: a synthetic log)")
	f.IntVar(&c.Pairs, "pairs", c.Pairs, "pairs of each data set")
	f.IntVar(&c.Trials, "rounds", c.Trials, "number of long sums of each length")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of samples, pairs and random numbers")
	out.addFlags(cmd)
	return cmd
}

// numbers is the part of a [LutStudy] that package study/arithmetic carries out.
const numbers = "numbers"

// lutStudyParts returns all parts of a [LutStudy]. Those but numbers are tests of package
// bench/aggregator.
func lutStudyParts() []string {
	return []string{numbers, string(aggregator.Throughput), string(aggregator.Negotiation)}
}

// LutStudy is what 'libra lut study' finds out: the precision and memory of the
// arithmetics, and their pace. It marshals to one JSON object with the fields of
// the reports that were asked for.
type LutStudy struct {
	*arithmetic.Report
	Aggregator *aggregator.Report `json:"aggregator,omitempty"`
}

// runLutStudy carries out parts of a study. What the process lacks the privileges for
// is left out, with a note. When ctx is done, it returns what it has and the cause.
func runLutStudy(ctx context.Context, c arithmetic.Config, parts []string, progress experiment.Progress) (*LutStudy,
	error) {
	if err := experiment.Known("measure", lutStudyParts(), parts...); err != nil {
		return nil, err
	}
	measured := aggregator.Defaults()
	measured.Tests, measured.SkipDenied, measured.Progress = nil, true, progress
	var s LutStudy
	var err error
	for _, part := range parts {
		if part != numbers {
			measured.Tests = append(measured.Tests, aggregator.Test(part))
			continue
		}
		if s.Report, err = arithmetic.Run(c); err != nil {
			return nil, err
		}
	}
	if len(measured.Tests) > 0 {
		s.Aggregator, err = aggregator.Run(ctx, measured)
	}
	return &s, err
}

func (s *LutStudy) reports() (all []experiment.Drawn) {
	if s.Report != nil {
		all = append(all, s.Report)
	}
	if s.Aggregator != nil {
		all = append(all, s.Aggregator)
	}
	return all
}

// Print writes both reports for people.
func (s *LutStudy) Print(out *report.Printer) {
	for _, r := range s.reports() {
		r.Print(out)
	}
}

// Charts returns those of both reports.
func (s *LutStudy) Charts() (all []chart.Chart) {
	for _, r := range s.reports() {
		all = append(all, r.Charts()...)
	}
	return all
}
