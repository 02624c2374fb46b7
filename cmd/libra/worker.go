// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train"
)

// WorkerLine is a line of 'libra worker --json', with one of its members.
type WorkerLine struct {
	Ready    *int               `json:"ready,omitempty"`    // process ID, once it has joined
	Progress *train.Progress    `json:"progress,omitempty"` // from time to time
	Result   *node.WorkerResult `json:"result,omitempty"`   // at the end
}

// progressPeriod is the time between two reports of a worker's progress.
const progressPeriod = 200 * time.Millisecond

func newWorker() *cobra.Command {
	var (
		p  process
		id uint16
	)
	cmd := &cobra.Command{
		Use:   "worker --config FILE --id N",
		Short: "Run one worker, which trains its part of the data",
		Long:  `Joins the job at the parameter server and the aggregator and trains its shard of the rows.` + configHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if id == 0 {
				return usagef(cmd, "--id is required: the worker's number in the configuration")
			}
			env, err := p.readEnv(cmd, cluster.Read)
			if err != nil {
				return err
			}
			result, err := node.RunWorker(cmd.Context(), env, node.WorkerOptions{ID: id, Progress: p.newProgress()})
			if err != nil {
				return err
			}
			if p.json {
				return p.printLine(WorkerLine{Result: result})
			}
			loss := ""
			for _, l := range result.All() {
				loss = fmt.Sprintf(", %s %.4f", l.Name, l.Value)
			}
			fmt.Fprintf(p.out, "%d samples in %v%s; %d hot and %d cold pairs in %d frames, %d retransmissions\n",
				result.Samples, result.Elapsed.Round(time.Millisecond), loss, result.HotPairs, result.ColdPairs, result.Frames,
				result.Retransmissions)
			out := report.NewPrinter(p.out)
			printLatencies(out, "Times of measured frames and pushes", result.Latencies)
			return out.Err()
		},
	}
	p.addFlags(cmd)
	cmd.Flags().Uint16Var(&id, "id", 0, "number of the worker in the configuration (required)")
	return cmd
}

// newProgress returns a function that reports a worker's progress from time to
// time: as JSON lines, or in the log.
func (p *process) newProgress() func(train.Progress) {
	every := everyPeriod(p.json)
	return func(w train.Progress) {
		if !every() {
			return
		}
		if !p.json {
			line := []any{"epoch", w.Epoch + 1, "samples", w.Samples}
			for _, l := range w.All() {
				line = append(line, l.Key, l.Value)
			}
			slog.Info("training", line...)
			return
		}
		if err := p.printLine(WorkerLine{Progress: &w}); err != nil {
			slog.Warn("cannot report progress", "error", err)
		}
	}
}

// everyPeriod returns a function that reports whether it is time for another report of progress: as
// a JSON line, or in the log.
func everyPeriod(asJSON bool) func() bool {
	period := progressPeriod
	if !asJSON {
		period = 5 * time.Second
	}
	last := time.Now()
	return func() bool {
		now := time.Now()
		if now.Sub(last) < period {
			return false
		}
		last = now
		return true
	}
}
