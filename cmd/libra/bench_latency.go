// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/latency"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchLatency() *cobra.Command {
	var (
		c   = latency.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Measure where frames spend their time, and what senders cost a server, as the IMC '20 paper does",
		Long: `Runs workers that push and pull over sockets of this machine, and joins what both ends
measure of their frames: how long they take, and in which part. Then it measures the CPU time of
a server for frames of one row, from different numbers of senders and over as many ZeroMQ
connections. With --log it counts the updates of the parameters in training data, and which
share the hottest have. With --capture it shows from files of 'libra capture' how large answers
are, and how frequent the requests of workers. It needs no root.`,
		Example: `  libra bench latency --targets --out plots
  libra bench latency --log train.libfm --log-batch 64
  libra bench latency --capture server.pcapng --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if slices.Equal(c.Baselines, []string{noBaseline}) {
				c.Baselines = nil
			}
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*latency.Report, error) {
				c.Progress = p
				return runLatency(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Workers, "workers", c.Workers, "workers that push and pull")
	f.IntVar(&c.Batch, "push-rows", c.Batch, "rows that are drawn for a push and a pull")
	f.IntVar(&c.Sample, "sample", c.Sample, "frames of which one is measured: a power of two")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time for which they push and pull in a round")
	f.IntSliceVar(&c.Senders, "senders", c.Senders, "numbers of senders that are compared")
	f.IntVar(&c.Frames, "frames", c.Frames, "frames that they send in a round")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.StringSliceVar(&c.Logs, "log", nil, "training `files` in LibFM format whose updates are counted (default: none)")
	f.StringSliceVar(&c.Captures, "capture", nil, "pcapng `files` of a server's or a switch's frames, whose sizes and times are shown (default: none)")
	f.IntVar(&c.LogBatch, "log-batch", c.LogBatch, "samples of a batch, which updates each of its parameters once")
	f.IntVar(&c.Top, "top", c.Top, "how many parameters are the hottest")
	baselineFlag(cmd, &c.Baselines)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
