// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/study/schedule"
)

func newBenchSchedule() *cobra.Command {
	var (
		c   = schedule.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Compare plans of several switches with shared switch memory, next to the GOAT paper's figures",
		Long: `Simulates the GOAT paper's §IV-C: GOAT's algorithm (KRGS), ATP, ESA and Geryon on a
leaf–spine fabric and a fat tree, with a fifth of the switches programmable, beside the
plans of 'libra plan' and the lower bound of all plans. It prints what reaches the
server, what is aggregated in the network and the bytes times links (Figures 10 to 13),
the deviations of the workers' rates at which sharing memory costs more than a plan, the
transfers of Figure 2, and where the paper's figures contradict its settings. Nothing is
measured: the same seed gives the same figures.`,
		Example: `  libra bench schedule --out plots
  libra bench schedule --placements 5 --workers 35 --models 240 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "placements", func(p experiment.Progress) (*schedule.Report, error) {
				c.Progress = p
				return schedule.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Placements, "placements", c.Placements, "random choices of the programmable switches and the hosts")
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers, for Figures 10 to 12")
	f.Float64SliceVar(&c.Deviations, "deviations", c.Deviations,
		"standard deviations of the workers' rates, for Figure 13")
	f.IntSliceVar(&c.Models, "models", c.Models, "sizes of the gradient of a worker, in MB: the paper's text has 221, its figures 240")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of placements, paths, rates and KRGS's rounding")
	out.addFlags(cmd)
	return cmd
}
