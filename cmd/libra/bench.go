// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/internal/chart"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/sudo"
	"github.com/libra-ina/libra/study/tofino"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the packet engine, the push path and the aggregator",
	}
	cmd.AddCommand(newBenchEngine(), newBenchPush(), newBenchAggregator(), newBenchSoak(), newBenchTenants(), newBenchP4())
	return cmd
}

// results holds the flags for where a measurement's results go.
type results struct {
	json    bool
	plots   string
	targets bool
}

func (r *results) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.json, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&r.plots, "out", "", "`folder` for SVG plots (default: no plots)")
}

// targetFlag adds the flag for what an experiment has to reach.
func (r *results) targetFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.targets, "targets", false, "also report which of the project's own targets are met")
}

// prepare makes the folder for plots, not after minutes of measuring.
func (r *results) prepare() error {
	if r.plots == "" {
		return nil
	}
	if err := sudo.MkdirAll(r.plots, 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return writable(filepath.Join(r.plots, "plot"), r.plots)
}

// misuse makes a usage error of one about a measurement's configuration. It names the
// flag that gave the value.
func misuse(cmd *cobra.Command, err error) error {
	if field := (*harness.ConfigError)(nil); errors.As(err, &field) && cmd.Flags().Lookup(field.Field) != nil {
		return usagef(cmd, "--%s: %s", field.Field, field.Problem)
	}
	if errors.Is(err, harness.ErrConfig) {
		return usagef(cmd, "%w", err)
	}
	return err
}

// write prints a report as tables or as JSON, and draws its charts.
func (r *results) write(w io.Writer, measured harness.Report) error {
	if judged, ok := measured.(harness.Judged); ok && !r.targets {
		judged.Unjudged()
	}
	var plots []string
	if drawn, ok := measured.(harness.Drawn); ok && r.plots != "" {
		var err error
		if plots, err = chart.Write(r.plots, drawn.Charts()); err != nil {
			return err
		}
	}
	if r.json {
		return report.WriteJSON(w, measured)
	}
	if err := harness.WriteTables(w, measured); err != nil {
		return err
	}
	for _, p := range plots {
		fmt.Fprintln(w, "plot:", p)
	}
	return nil
}

// measure runs a measurement, shows its progress and writes its report. One that fails
// may have a report too, of what it has measured.
func measure[T any, R interface {
	*T
	harness.Report
}](cmd *cobra.Command, out *results, unit string, run func(harness.Progress) (R, error)) error {
	if err := out.prepare(); err != nil {
		return err
	}
	var bar *report.Progress // from the first step on, which tells how many there are
	r, err := run(func(done, total int, what string) {
		if bar == nil {
			bar = report.NewProgress(cmd.ErrOrStderr(), int64(total), unit)
		}
		bar.Update(int64(done), what)
	})
	if bar != nil {
		bar.Finish()
	}
	err = misuse(cmd, err)
	if r != nil {
		err = errors.Join(err, out.write(cmd.OutOrStdout(), r))
	}
	return err
}

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
which count, and return, the UDP packets to port 9119 that another machine sends; and
request-response, whose frames another machine forwards, with a histogram. All other packets
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
			return measure(cmd, &out, "measurements", func(p harness.Progress) (*engine.Report, error) {
				c.Progress = p
				return engine.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "measure", names(c.Tests), "what to measure; with --interface transmit, receive, forward and request-response, and only transmit unless others are named")
	f.IntSliceVar(&c.Sizes, "sizes", c.Sizes, "frame sizes in bytes; with --interface up to 1514")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.StringVar(&card.Interface, "interface", "", "`name` of the interface of this machine to measure on (default: a temporary veth pair)")
	f.StringVar(&card.Peer, "peer", "", "IPv4 or Ethernet `address` that --interface sends to (default: none)")
	f.Float64Var(&card.Pace, "pace", 0, "most frames per second that --interface sends on all queues together (default: no limit)")
	f.IntSliceVar(&card.Queues, "queues", nil, "queues of --interface to use (default: all)")
	f.BoolVar(&card.Force, "force", false, "measure on --interface even if it leads to the default gateway")
	choices(cmd, "measure", append(names(engine.Tests()), string(engine.Forward))...)
	baselineFlag(cmd, &baselines)
	out.flags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(engine.RunChild))
	return cmd
}

// measureInterface measures on an interface of the user's, and tells before what it sends there.
func measureInterface(cmd *cobra.Command, c engine.InterfaceConfig, out *results) error {
	c.Sending = func(i engine.Interface) {
		pace := "as fast as it can"
		if i.Pace > 0 {
			pace = fmt.Sprintf("%g a second", i.Pace)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "libra: sends frames from %s to %s, UDP port 9119, %s; Ctrl-C ends it\n", i.Name, i.Peer, pace)
	}
	return measure(cmd, out, "measurements", func(p harness.Progress) (*engine.Report, error) {
		c.Progress = p
		return engine.RunInterface(cmd.Context(), c)
	})
}

func newBenchPush() *cobra.Command {
	var (
		c         = push.Defaults()
		baselines = push.Baselines()[1:]
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
each role to a share of a CPU, and the measured rate is compared with the predicted one.`,
		Example: `  libra bench push --workers 4 --batches 4096 --baseline zeromq-table
  libra bench push --scale --batches 4096 --duration 1s --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if given := cmd.Flags().Changed; c.Scale {
				if !given("workers") {
					c.Workers = push.ScaleDefaults().Workers
				}
				if !given("baseline") {
					baselines = push.ScaleBaselines()[1:]
				}
			} else if given("line") {
				return usagef(cmd, "--line is for the study of scale: with --scale")
			}
			return measure(cmd, &out, "measurements", func(p harness.Progress) (*push.Report, error) {
				c.Progress, c.Baselines = p, besides(push.Libra, baselines)
				return push.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers")
	f.IntSliceVar(&c.Batches, "batches", c.Batches, "pairs in a push")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests")
	f.Float64Var(&c.Loss, "loss", c.Loss, "share of the frames that the workers of libra-lossy lose in each direction")
	f.BoolVar(&c.Scale, "scale", false, "add the study of scale; measures 2 workers unless --workers has another number")
	f.Float64Var(&c.Line, "line", c.Line, "Gbit/s of a machine's link in the study of scale")
	baselineFlag(cmd, &baselines)
	out.flags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(push.RunChild))
	return cmd
}

// noBaseline is the word for no baselines at all.
const noBaseline = "none"

// baselineFlag adds the flag for what to compare with; all are the default.
func baselineFlag(cmd *cobra.Command, baselines *[]string) {
	all := append(slices.Clone(*baselines), noBaseline)
	cmd.Flags().StringSliceVar(baselines, "baseline", *baselines, "what to compare with")
	choices(cmd, "baseline", all...)
}

// besides returns what is measured: libra, and what it is compared with.
func besides(libra string, baselines []string) []string {
	if slices.Equal(baselines, []string{noBaseline}) {
		return []string{libra}
	}
	return append([]string{libra}, baselines...)
}

// newChild returns the hidden command with which a benchmark starts its
// processes.
func newChild(run func(args []string) error) *cobra.Command {
	return &cobra.Command{
		Use:                "child", // see child.Command
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return run(args) },
	}
}

func newBenchP4() *cobra.Command {
	var out results
	cmd := &cobra.Command{
		Use:   "p4",
		Short: "Print the Tofino resources of the switch programs, next to the paper's",
		Long: `Prints the registers, tables and counters of the switch programs, and the resources that
they need in a Tofino's pipeline, next to the paper's figures (§5.7). It measures nothing:
declarations are read from the programs, and the rest is derived.`,
		Example: "  libra bench p4 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := tofino.Run()
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&out.json, "json", false, "print one JSON object")
	return cmd
}
