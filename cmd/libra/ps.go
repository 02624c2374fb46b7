// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
)

// ServerLine is a line of 'libra ps --json', with one of its members.
type ServerLine struct {
	Ready      *int               `json:"ready,omitempty"`      // process ID, once it serves
	Evaluation *node.Evaluation   `json:"evaluation,omitempty"` // after each epoch, with data.test
	Result     *node.ServerResult `json:"result,omitempty"`     // at the end
}

func newServer() *cobra.Command {
	var (
		p     process
		index int
		step  uint64
	)
	cmd := &cobra.Command{
		Use:   "ps --config FILE",
		Short: "Run a parameter server of a job",
		Long: `Creates the job at the aggregator, takes the workers' cold gradients and the
aggregator's sums, answers pulls, and ends when all workers have finished. With data.test
it evaluates the weights after each epoch: AUC and log-loss, or RMSE and MAE of regression,
are in the log, and in the result.

If there are several servers (the list servers in the cluster file), start each with its --index. The
first, with index 0, creates the job and receives the sums; each of the others holds its part of the
rows. With job.sync they write checkpoints of the same steps and keep the last two (FILE and
FILE.previous). --step makes a server resume from the checkpoint of that step.` + configHelp,
		Example: `  libra ps --config cluster.yaml
  libra ps --config cluster.yaml --index 2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := p.readEnv(cmd, cluster.Read)
			if err != nil {
				return err
			}
			if n := len(env.Config.AllServers()); n > 1 && !cmd.Flags().Changed("index") {
				return usagef(cmd, "--index is required: %s has %d servers, which one is this?", p.config, n)
			}
			env.Server = index
			if cmd.Flags().Changed("step") {
				env.Step = &step
			}
			if p.json {
				env.Evaluated = func(e node.Evaluation) {
					if err := p.printLine(ServerLine{Evaluation: &e}); err != nil {
						slog.Warn("cannot report an evaluation", "error", err)
					}
				}
			}
			result, err := node.RunServer(cmd.Context(), env)
			if err != nil {
				return err
			}
			if p.json {
				return p.printLine(ServerLine{Result: result})
			}
			if result.WeightsSHA256 == "" {
				fmt.Fprintf(p.out, "sums of %d steps; no weights, as model.optimizer is none\n", result.Steps)
			} else {
				fmt.Fprintf(p.out, "%d rows after %d steps; weights %s\n", result.Rows, result.Steps, result.WeightsSHA256)
			}
			out := report.NewPrinter(p.out)
			printLatencies(out, "Times of measured frames", result.Latencies)
			return out.Err()
		},
	}
	p.addFlags(cmd)
	cmd.Flags().IntVar(&index, "index", 0,
		"index of the server in the list servers of the configuration, from 0 (required if there are several)")
	cmd.Flags().Uint64Var(&step, "step", 0, "`step` of the checkpoint to resume from, one of the last two (default: the last; only several servers with job.sync)")
	return cmd
}
