package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/internal/report"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the packet engine, the push path and the aggregator",
	}
	cmd.AddCommand(newBenchEngine(), newBenchPush(), newBenchAggregator(), newBenchSoak(), newBenchTenants())
	return cmd
}

// results holds the flags for where a measurement's results go.
type results struct {
	json  bool
	plots string
}

func (r *results) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.json, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&r.plots, "out", "", "`folder` for SVG plots (default: no plots)")
}

// writeReport prints a report, and draws its charts.
func (r *results) writeReport(w io.Writer, report harness.Report) error {
	return r.write(w, report,
		func(w io.Writer) error { return harness.WriteTables(w, report) },
		func(dir string) ([]string, error) { return harness.WriteCharts(dir, report.Charts()) })
}

// write prints an object with its table function, or as JSON, and draws its
// plots.
func (r *results) write(w io.Writer, object any, table func(io.Writer) error, draw func(dir string) ([]string, error)) error {
	var plots []string
	if r.plots != "" {
		var err error
		if plots, err = draw(r.plots); err != nil {
			return err
		}
	}
	if r.json {
		return json.NewEncoder(w).Encode(object)
	}
	if err := table(w); err != nil {
		return err
	}
	for _, p := range plots {
		fmt.Fprintln(w, "plot:", p)
	}
	return nil
}

func newBenchEngine() *cobra.Command {
	var (
		c     = engine.Defaults()
		tests []string
		out   results
	)
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure packet rates, CPU time and latency beside other packet engines",
		Long: `Makes a veth pair between two namespaces and runs the engine and its baselines in
turns, pinned the same way: transmit, receive, echo and request-response. Frames
count where they are delivered. The test push holds a worker, which pushes to the
XDP aggregator, against the bare engine at the sizes 190 and 1414. Baselines that are
not installed are named with what to install. Everything takes some ten minutes;
--tests, --sizes and --peers shorten it.`,
		Example: "  libra bench engine --tests transmit,echo --sizes 190,1414 --peers libra,libxdp,udp",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Tests = named[engine.Test](tests)
			progress := newSteps(cmd.ErrOrStderr(), "measurements")
			c.Progress = progress.step
			r, err := engine.Run(cmd.Context(), c)
			progress.finish()
			if r != nil {
				err = errors.Join(err, out.writeReport(cmd.OutOrStdout(), r))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&tests, "tests", names(c.Tests), "what to measure")
	f.IntSliceVar(&c.Sizes, "sizes", c.Sizes, "frame sizes in bytes")
	f.StringSliceVar(&c.Baselines, "peers", c.Baselines, "what to compare")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	out.flags(cmd)
	cmd.AddCommand(newChild(engine.RunChild))
	return cmd
}

func newBenchPush() *cobra.Command {
	var (
		c   = push.Defaults()
		out results
	)
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Measure pushes through the whole system beside key-value messages over ZeroMQ",
		Long: `Runs workers, the XDP aggregator and a parameter server on a network of
namespaces, and the same pushes as key-value messages over ZeroMQ (the pattern of
ps-lite), in turns. Every run checks that the sums are exact. The baseline is
compiled when libzmq's headers are there (Debian: libzmq3-dev).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := newSteps(cmd.ErrOrStderr(), "measurements")
			c.Progress = progress.step
			r, err := push.Run(cmd.Context(), c)
			progress.finish()
			if r != nil {
				err = errors.Join(err, out.writeReport(cmd.OutOrStdout(), r))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.Workers, "workers", c.Workers, "numbers of workers")
	f.IntSliceVar(&c.Batches, "batches", c.Batches, "pairs in a push")
	f.StringSliceVar(&c.Baselines, "peers", c.Baselines, "what to compare")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.DurationVar(&c.Duration, "duration", c.Duration, "time of one measurement")
	f.DurationVar(&c.Harvest, "harvest", c.Harvest, "time between two harvests")
	out.flags(cmd)
	cmd.AddCommand(newChild(push.RunChild))
	return cmd
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

// steps shows the progress of a measurement whose number of steps is known when
// the first begins.
type steps struct {
	w    io.Writer
	unit string
	bar  *report.Progress
}

func newSteps(w io.Writer, unit string) *steps { return &steps{w: w, unit: unit} }

func (s *steps) step(done, total int, what string) {
	if s.bar == nil {
		s.bar = report.NewProgress(s.w, int64(total), s.unit)
	}
	s.bar.Update(int64(done), what)
}

func (s *steps) finish() {
	if s.bar != nil {
		s.bar.Finish()
	}
}
