// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchEngine() *cobra.Command {
	var (
		c         = engine.Defaults()
		card      = engine.InterfaceDefaults()
		tests     []string
		baselines = engine.Baselines()[1:]
		out       results
	)
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure packet rates, CPU time and latency against other packet engines",
		Long: `Creates a veth pair between two namespaces and alternates between the engine and its
baselines, pinned the same way: transmit, receive, echo and request-response. Frames
are counted where they are delivered. The test push compares a worker, which pushes to
the XDP aggregator, with the bare engine at the sizes 190 and 1414. Missing baselines
are listed with the packages to install. Everything takes about ten minutes;
--measure, --sizes and --baseline shorten it.

With --interface it measures the engine on an interface of this machine instead, on all of its
queues: transmit, which sends to --peer as fast as it can, or at --pace; receive and forward,
which count, and return, the UDP packets to port 9119 that a second machine sends; and
request-response, whose frames a second machine forwards, with a histogram. All other packets
reach the kernel as usual, and the interface is restored. It needs the privileges of package
afxdp; the other machine runs the same command.`,
		Example: `  libra bench engine --measure transmit,echo --sizes 190,1414 --baseline libxdp,udp
  libra bench engine --interface eth1 --measure forward --duration 1m
  libra bench engine --interface eth1 --peer 10.0.0.2 --measure request-response --pace 10000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed
			if given("interface") {
				if given("baseline") || given("targets") {
					return usagef(cmd, "--interface measures the engine alone: without --baseline and --targets")
				}
				if given("measure") {
					card.Tests = named[engine.Test](tests)
				}
				if given("sizes") {
					card.Sizes = c.Sizes
				}
				card.Rounds, card.Duration = c.Rounds, c.Duration
				return measureInterface(cmd, card, &out)
			}
			for _, name := range []string{"peer", "pace", "queues", "force"} {
				if given(name) {
					return usagef(cmd, "--%s is for measurements with --interface", name)
				}
			}
			c.Tests = named[engine.Test](tests)
			c.Baselines = besides(engine.Libra, baselines)
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*engine.Report, error) {
				c.Progress = p
				return runEngine(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "measure", names(c.Tests), "what to measure; with --interface transmit, receive, forward and request-response, and only transmit unless more are named")
	f.IntSliceVar(&c.Sizes, "sizes", c.Sizes, "frame sizes in bytes; with --interface up to 1514")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.StringVar(&card.Interface, "interface", "",
		"`name` of the interface of this machine to measure on (default: a temporary veth pair)")
	f.StringVar(&card.Peer, "peer", "", "IPv4 or Ethernet `address` that --interface sends to (default: none)")
	f.Float64Var(&card.Pace, "pace", 0,
		"most frames per second that --interface sends on all queues together (default: no limit)")
	f.IntSliceVar(&card.Queues, "queues", nil, "queues of --interface to use (default: all)")
	f.BoolVar(&card.Force, "force", false, "measure on --interface even if it leads to the default gateway")
	choices(cmd, "measure", append(names(engine.Tests()), string(engine.Forward))...)
	baselineFlag(cmd, &baselines)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(engineChild))
	return cmd
}

// measureInterface measures on an interface of the user's. It first prints what it will send there.
func measureInterface(cmd *cobra.Command, c engine.InterfaceConfig, out *results) error {
	c.Sending = func(i engine.Interface) {
		pace := "as fast as it can"
		if i.Pace > 0 {
			pace = fmt.Sprintf("%g a second", i.Pace)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "libra: sends frames from %s to %s, UDP port 9119, %s; Ctrl-C ends it\n", i.Name,
			i.Peer, pace)
	}
	return measure(cmd, out, "measurements", func(p experiment.Progress) (*engine.Report, error) {
		c.Progress = p
		return runInterface(cmd.Context(), c)
	})
}
