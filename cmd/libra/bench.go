// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the packet engine, the push path, all-reduces and the aggregator, and compare schedules",
	}
	cmd.AddCommand(newBenchEngine(), newBenchPush(), newBenchAllreduce(), newBenchGLM(), newBenchRing(), newBenchCodec(),
		newBenchLatency(), newBenchAggregator(), newBenchSoak(), newBenchTenants(), newBenchSchedule(), newBenchP4(),
		newBenchPSLite())
	return cmd
}

// results holds the flags for where a measurement's results go.
type results struct {
	json    bool
	plots   string
	targets bool
}

func (r *results) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.json, "json", false, "print one JSON object")
	cmd.Flags().StringVar(&r.plots, "out", "", "`folder` for SVG plots (default: no plots)")
}

// targetFlag adds the flag for what an experiment has to reach.
func (r *results) targetFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.targets, "targets", false, "also report which of the project's own targets are met")
}

// makeFolder makes the folder for plots.
func (r *results) makeFolder() (leave func(), err error) { return makeOut(r.plots, 0o755) }

// makeOut makes the folder of --out, if there is one, before minutes of work instead of after them.
// leave, which is not to be called after an error, removes what it has made and is still empty, as
// of work that fails.
func makeOut(folder string, mode fs.FileMode) (leave func(), err error) {
	if folder == "" {
		return func() {}, nil
	}
	made := file.Missing(folder)
	leave = func() {
		for _, f := range made {
			_ = os.Remove(f) // one with files stays
		}
	}
	if err = file.MkdirAll(folder, mode); err != nil {
		err = fmt.Errorf("--out: %w", err)
	} else {
		err = writable(filepath.Join(folder, "result"), folder)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// misuse makes a usage error of one about a measurement's configuration. It names the
// flag that gave the value.
func misuse(cmd *cobra.Command, err error) error {
	if field := (*experiment.ConfigError)(nil); errors.As(err, &field) && cmd.Flags().Lookup(field.Field) != nil {
		return usagef(cmd, "--%s: %s", field.Field, field.Problem)
	}
	if errors.Is(err, experiment.ErrConfig) {
		return usagef(cmd, "%w", err)
	}
	return err
}

// writeReport prints a report as tables or as JSON, and draws its charts.
func (r *results) writeReport(w io.Writer, measured experiment.Report) error {
	if judged, ok := measured.(experiment.WithTargets); ok && !r.targets {
		judged.DropTargets()
	}
	var plots []string
	if drawn, ok := measured.(experiment.Drawn); ok && r.plots != "" {
		var err error
		if plots, err = chart.Write(r.plots, drawn.Charts()); err != nil {
			return err
		}
	}
	if r.json {
		return report.WriteJSON(w, measured)
	}
	if err := experiment.WriteTables(w, measured); err != nil {
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
	experiment.Report
}](cmd *cobra.Command, out *results, unit string, run func(experiment.Progress) (R, error)) error {
	leave, err := out.makeFolder()
	if err != nil {
		return err
	}
	defer leave()
	var bar *report.Progress // from the first step on, which reports their number
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
		err = errors.Join(err, out.writeReport(cmd.OutOrStdout(), r))
	}
	return err
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
