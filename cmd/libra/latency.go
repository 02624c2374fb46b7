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
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/export"
)

func newLatency() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Find out where the frames of running processes spend their time",
		Long: `Reads what the processes of a cluster have measured of drawn frames. Their cluster files
need telemetry.port.`,
	}
	cmd.AddCommand(newLatencyRecord())
	return cmd
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
			ctx := cmd.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
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
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
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
	r := export.Recording{Security: security, Log: slog.Default(), Write: func(all []telemetry.Row) error {
		for i := range all {
			if err := rows.Write(export.Fields(&all[i])); err != nil {
				return err
			}
		}
		rows.Flush()
		return rows.Error()
	}}
	for _, p := range c.Processes() {
		if !p.Records {
			continue
		}
		r.Sources = append(r.Sources, export.Source{Name: p.Name, At: p.At})
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
