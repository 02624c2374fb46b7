// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/trace"
)

func newBenchPush() *cobra.Command {
	var (
		c         = push.Defaults()
		baselines = push.Baselines()[1:]
		traces    []string
		hot       []string
		out       results
	)
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Measure pushes through the whole system against key-value messages over ZeroMQ",
		Long: `Runs workers, the XDP aggregator and a parameter server on a network of
namespaces, and the same pushes as key-value messages over ZeroMQ (the pattern of
ps-lite), alternately. Every run checks that the sums are exact. The baseline is
compiled if libzmq's headers are installed (Debian: libzmq3-dev).

With --scale it measures the cost of a pair for each role, and predicts the rates of 1 to 64 workers
with 1 to 8 servers, each on its own machine, and lists the assumptions. Then control groups limit
each role to a share of a CPU, and the measured rate is compared with the predicted one.

With --trace it replays what the workers of trainings pushed, as 'libra run --record' wrote it, or
one that is made up with the skew of the Libra paper's on-line advertising (oa) or search (se): with
Libra, as key-value messages over ZeroMQ, and in SwitchML's way, which adds up all gradients of the
model. It is Figure 12 of that paper, for 4 and 8 workers on this machine, and computed for 8, 16
and 32 on machines of their own.`,
		Example: `  libra bench push --workers 4 --batches 4096 --baseline zeromq-table
  libra bench push --workers 4,8 --batches 4096 --servers 1,2 --baseline none
  libra bench push --workers 1,4 --hot 30000,65536,262144,auto --baseline none
  libra bench push --scale --batches 4096 --duration 1s --out plots
  libra bench push --trace oa,se,traces/ncf --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed
			if len(traces) > 0 {
				for _, other := range []string{"scale", "batches", "loss", "servers", "hot"} {
					if given(other) {
						return usagef(cmd, "--%s is not for traces: leave it or --trace out", other)
					}
				}
				var err error
				if c.Traces, err = readTraces(traces); err != nil {
					return err
				}
				replays := push.ReplayDefaults(nil)
				if !given("workers") {
					c.Workers = replays.Workers
				}
				if !given("duration") {
					c.Duration = replays.Duration
				}
				if !given("baseline") {
					baselines = replays.Baselines[1:]
				}
				return measure(cmd, &out, "measurements", func(p experiment.Progress) (*push.Report, error) {
					c.Progress, c.Baselines = p, besides(push.Unprepared, baselines)
					return runPush(cmd.Context(), c)
				})
			}
			var err error
			if c.Hot, err = hotNumbers(hot); err != nil {
				return usagef(cmd, "--hot: %w", err)
			}
			if c.Scale {
				if !given("workers") {
					c.Workers = push.ScaleDefaults().Workers
				}
				if !given("baseline") {
					baselines = push.ScaleBaselines()[1:]
				}
			} else if given("line") {
				return usagef(cmd, "--line is for the study of scale: with --scale, or with --trace")
			}
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*push.Report, error) {
				c.Progress, c.Baselines = p, besides(push.Libra, baselines)
				return runPush(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers")
	f.IntSliceVar(&c.Servers, "servers", c.Servers, "numbers of servers of libra and libra-unprepared")
	f.StringSliceVar(&hot, "hot", []string{strconv.Itoa(push.HotKeys)},
		"numbers of hot rows of libra and libra-unprepared, or auto: what costs least at the rate with the first number")
	f.IntSliceVar(&c.Batches, "batches", c.Batches, "pairs in a push")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests")
	f.Float64Var(&c.Loss, "loss", c.Loss, "share of the frames that the workers of libra-lossy lose in each direction")
	f.BoolVar(&c.Scale, "scale", false,
		fmt.Sprintf("add the study of scale; measures %d workers unless --workers gives a different number",
			push.ScaleDefaults().Workers[0]))
	f.StringSliceVar(&traces, "trace", nil, "traces to replay: `folders` of 'libra run --record', oa or se")
	f.Float64Var(&c.Line, "line", c.Line, "Gbit/s of a machine's link in the study of scale")
	f.StringSliceVar(&baselines, "baseline", baselines, "what to compare with")
	choices(cmd, "baseline", append(slices.Clone(baselines), push.SwitchML, noBaseline)...)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(pushChild))
	return cmd
}

// hotNumbers reads numbers of hot rows.
func hotNumbers(texts []string) (numbers []int, err error) {
	for _, text := range texts {
		n := push.AutoHot
		if text != "auto" {
			if n, err = strconv.Atoi(text); err != nil || n < 1 {
				return nil, fmt.Errorf("%q is neither a number of rows nor auto", text)
			}
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// drawnShape is how much of a made-up training is replayed.
var drawnShape = trace.Shape{Workers: 8, Pushes: 32, Rows: 16384}

// readTraces reads the traces of folders, and draws those with the names of made-up ones. Two with
// the same name could not be told apart.
func readTraces(names []string) (all []*trace.Trace, err error) {
	seen := map[string]bool{}
	for _, name := range names {
		called := filepath.Base(filepath.Clean(name))
		if seen[called] {
			return nil, fmt.Errorf("--trace: two traces have the name %s: rename a folder", called)
		}
		seen[called] = true
	}
	for _, name := range names {
		var t *trace.Trace
		switch name {
		case trace.OA.Name:
			t = trace.Draw(trace.OA, drawnShape, 1)
		case trace.SE.Name:
			t = trace.Draw(trace.SE, drawnShape, 1)
		default:
			if t, err = trace.Read(name); err != nil {
				return nil, err
			}
		}
		all = append(all, t)
	}
	return all, nil
}
