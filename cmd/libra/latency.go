// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/breakdown"
	"github.com/libra-ina/libra/telemetry/export"
)

// latencyFor is how long 'libra latency' reads records.
const latencyFor = 10 * time.Second

func newLatency() *cobra.Command {
	var (
		config, plots string
		asJSON        bool
		duration      time.Duration
	)
	cmd := &cobra.Command{
		Use:   "latency --config FILE",
		Short: "Show where the frames of running processes spend their time",
		Long: `Reads the records of the workers and parameter servers of a cluster file, at the file's
telemetry.port, for --duration or until Ctrl-C, and joins those of the two ends of each frame.
It prints mean and quantiles of the total time and of each part, by operation, worker and
server: the network, the queue and the processing at the server and at the worker. Clocks of two
machines are not compared. --out draws the distributions.

With TLS, it needs a certificate for libra://operator in the file's tls section. The exit code is 1
if a process does not answer; what the others have measured is still printed.`,
		Example: `  libra latency --config cluster.yaml
  libra latency --config cluster.yaml --duration 1m --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readShown(cmd, config)
			if err != nil {
				return err
			}
			out := results{json: asJSON, plots: plots}
			leave, err := out.makeFolder()
			if err != nil {
				return err
			}
			defer leave()
			return showLatency(cmd, c, &out, duration)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "cluster configuration `file`")
	f.StringVar(&plots, "out", "", "`folder` for SVG plots (default: no plots)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	f.DurationVar(&duration, "duration", latencyFor, "time after which to stop")
	cmd.AddCommand(newLatencyRecord())
	return cmd
}

// LatencyReport is what 'libra latency --json' prints.
type LatencyReport struct {
	Seconds float64 `json:"read_s"` // for which records were read
	// Rows by what is known of them; see docs/telemetry.md.
	Whole      uint64 `json:"whole"`
	Repeated   uint64 `json:"repeated"`
	Half       uint64 `json:"half"`
	Ambiguous  uint64 `json:"ambiguous"`
	Impossible uint64 `json:"impossible"`
	Unclaimed  uint64 `json:"unclaimed"` // records of servers without one of a worker
	Torn       uint64 `json:"torn"`      // records that were replaced while they were read

	Latencies []breakdown.Times `json:"latencies"`

	times *breakdown.Breakdown
}

// Print implements [experiment.Report].
func (r *LatencyReport) Print(out *report.Printer) {
	breakdown.PrintTimes(out, fmt.Sprintf("Frames that were drawn within %.0f s", r.Seconds), r.Latencies)
	out.Table("Rows", []string{"whole", "repeated", "half", "ambiguous", "impossible", "unclaimed", "torn"},
		[][]any{{r.Whole, r.Repeated, r.Half, r.Ambiguous, r.Impossible, r.Unclaimed, r.Torn}})
}

// Charts implements [experiment.Drawn].
func (r *LatencyReport) Charts() []chart.Chart { return r.times.CDFs() }

func showLatency(cmd *cobra.Command, c *cluster.Config, out *results, duration time.Duration) error {
	shown := &LatencyReport{times: breakdown.New()}
	r, err := newRecording(c)
	if err != nil {
		return err
	}
	begun := time.Now()
	r.Write = func(all []telemetry.Row) error {
		for i := range all {
			shown.times.Add(&all[i])
		}
		return nil
	}
	ctx, cancel := limited(cmd.Context(), duration)
	defer cancel()
	n, err := r.Run(ctx)
	shown.Seconds, shown.Latencies = time.Since(begun).Seconds(), shown.times.All()
	shown.Whole, shown.Repeated, shown.Half, shown.Ambiguous = n.Whole, n.Resent, n.Half, n.Ambiguous
	shown.Impossible, shown.Unclaimed, shown.Torn = n.Impossible, n.Unclaimed, n.Torn
	if len(shown.Latencies) == 0 && err == nil {
		err = errors.New("no process has measured a frame: does the job run, and is its telemetry.sample not 0?")
	}
	return errors.Join(err, out.writeReport(cmd.OutOrStdout(), shown))
}

// limited returns a context that ends after a duration, unless that is 0.
func limited(ctx context.Context, duration time.Duration) (context.Context, context.CancelFunc) {
	if duration > 0 {
		return context.WithTimeout(ctx, duration)
	}
	return context.WithCancel(ctx)
}

// newRecording returns a recording of the processes of a cluster that have records.
func newRecording(c *cluster.Config) (*export.Recording, error) {
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	r := &export.Recording{Jobs: c.Job.HotIDs(), Security: security, Log: slog.Default()}
	for _, p := range c.Processes() {
		if p.Records {
			r.Sources = append(r.Sources, export.Source{Name: p.Name, At: p.At})
		}
	}
	return r, nil
}

func newLatencyRecord() *cobra.Command {
	var (
		config, out string
		duration    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "record --config FILE [--out FILE]",
		Short: "Write a row for each drawn frame, with its time at the worker, at the server and between them",
		Long: `Reads the records of the workers and parameter servers of a cluster file, at the file's
telemetry.port, and joins those of the two ends of each frame, until Ctrl-C or for --duration.
It writes one row of CSV for each drawn frame: worker, server, kind, sizes, total time, and the
parts that add up to it: queue and processing at the worker and at the server, and the rest,
which is the network. Clocks of two machines are not compared.

A process keeps the last 8,192 records; the first rows are of frames from before the start. With
TLS, it needs a certificate for libra://operator in the file's tls section. The exit code is 1
if a process does not answer; the rows of the others are still written.`,
		Example: `  libra latency record --config cluster.yaml --out rows.csv
  libra latency record --config cluster.yaml --duration 1m > rows.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := readShown(cmd, config)
			if err != nil {
				return err
			}
			ctx, cancel := limited(cmd.Context(), duration)
			defer cancel()
			return recordLatency(ctx, c, cmd.OutOrStdout(), out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "cluster configuration `file`")
	f.StringVarP(&out, "out", "o", "-", "`file` to write, - is standard output")
	f.DurationVar(&duration, "duration", 0, "time after which to stop (default: no limit)")
	return cmd
}

func recordLatency(ctx context.Context, c *cluster.Config, stdout io.Writer, out string) (err error) {
	r, err := newRecording(c)
	if err != nil {
		return err
	}
	to := stdout
	if out != "-" {
		file, failed := os.Create(out)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		to = file
	}
	rows := csv.NewWriter(to)
	if err := rows.Write(export.Columns()); err != nil {
		return err
	}
	r.Write = func(all []telemetry.Row) error {
		for i := range all {
			if err := rows.Write(export.Fields(&all[i])); err != nil {
				return err
			}
		}
		rows.Flush()
		return rows.Error()
	}
	n, err := r.Run(ctx)
	slog.Info("recorded", "whole", n.Whole, "repeated", n.Resent, "half", n.Half, "ambiguous", n.Ambiguous,
		"impossible", n.Impossible, "unclaimed", n.Unclaimed, "torn", n.Torn)
	return err
}

// readShown reads the cluster file of a command that reads what its processes show.
func readShown(cmd *cobra.Command, config string) (*cluster.Config, error) {
	if config == "" {
		return nil, usagef(cmd, "--config is required: the cluster file of the processes")
	}
	c, err := cluster.ReadAny(config)
	if err == nil && c.Telemetry.Port == 0 {
		err = fmt.Errorf("%s: telemetry.port is not set, so its processes show nothing: set it, and start them again", config)
	}
	return c, err
}
