// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/tenants"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchTenants() *cobra.Command {
	var (
		c      = tenants.Defaults()
		out    results
		within float64
	)
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "Measure whether jobs that misbehave delay the harvests of others",
		Long: `Runs two jobs on one switch and measures the time between their harvests, alone
and next to a job that floods the switch with frames that are expensive to refuse,
while senders continually join and leave and jobs are created and removed. Every
run checks that their sums are exact. It needs root.`,
		Example: `  libra bench tenants --within 0.2 --json`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "runs", func(p experiment.Progress) (*tenants.Report, error) {
				c.Progress = p
				r, err := runTenants(cmd.Context(), c)
				if err != nil {
					return nil, err
				}
				if off := r.Deviation(); within > 0 && off > within {
					err = fmt.Errorf("a job's mean harvest interval, or its 95th percentile, is off its setting by %.1f %%, more than %.1f %%", 100*off, 100*within)
				}
				return r, err
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of each of the two runs")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests of the jobs")
	f.BoolVar(&c.ThreadedNAPI, "threaded-napi", false, "receive in kernel threads at the switch")
	f.Float64Var(&within, "within", 0,
		"fail if a mean interval or a 95th percentile is off by more than this `share` (default: do not)")
	f.BoolVar(&out.json, "json", false, "print one JSON object")
	cmd.AddCommand(newChild(tenantsChild))
	return cmd
}
