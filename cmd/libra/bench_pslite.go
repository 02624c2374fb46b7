// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/pslite"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchPSLite() *cobra.Command {
	var (
		c   = pslite.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "pslite",
		Short: "Measure programs of ps-lite with hot pairs through the aggregator beside ps-lite's own ZMQVan",
		Long: `Runs programs of ps-lite over Libra's van, and over ps-lite's ZMQVan, alternately: ps-lite's own
test_kv_app_benchmark with a hot set that no key hits, pushes of 8 pairs, and pushes of 4,096 pairs
by several workers, also while another worker pulls. 'make pslite' builds what it runs; see
docs/pslite.md. Every run of batches checks that the sums are exact.`,
		Example: `  libra bench pslite --targets
  libra bench pslite --apart --measure small,batches --rounds 5`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*pslite.Report, error) {
				c.Progress = p
				return pslite.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Built, "pslite", c.Built, "`folder` with what 'make pslite' has built")
	f.StringSliceVar(&c.Measures, "measure", c.Measures, "what to measure")
	f.IntVar(&c.Workers, "workers", c.Workers, "workers that push batches")
	f.IntVar(&c.Pushes, "pushes", c.Pushes, "batches of each worker")
	f.IntVar(&c.Small, "small", c.Small, "pushes of 8 pairs in a measurement")
	f.BoolVar(&c.Apart, "apart", false, "a host for each process, instead of one for all")
	f.StringVar(&c.Backend, "backend", c.Backend, "afxdp (needs root) or udp")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	choices(cmd, "measure", pslite.Measures()...)
	choices(cmd, "backend", cluster.BackendAFXDP, cluster.BackendUDP)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
