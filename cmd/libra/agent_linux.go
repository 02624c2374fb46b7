// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
)

func newAgent() *cobra.Command {
	var p process
	cmd := &cobra.Command{
		Use:   "agent --config FILE",
		Short: "Own a host's link, and push and pull for its unprivileged processes",
		Long: `Joins jobs as the workers that a YAML file names, and lets processes of this host push
gradients and pull weights through them, over a Unix socket and shared memory, in any
language (docs/agent.md specifies the protocol). The file:

  socket: /run/libra/agent.sock   # the default
  jobs:
    - name: clicks                # the job's name for processes
      cluster: cluster.yaml       # the job's cluster file
      worker: 1                   # this host in it
      users: [alice]              # who may use the job, by name or number,
      groups: [ml]                # besides the agent's own user
      clients: 64                 # at a time
      clients_per_user: 64        # of these, per user
      memory_mib: 64              # limit of the memory shared with each client
      prepared_mib: 64            # limit of the prepared batches of each client
      separate: false             # true: pushes of several clients are not added up
      finish: false               # true: when the agent is stopped, this host has finished

With workers: [1, 2] instead of worker, the agent serves a range of jobs without a parameter
server, one for each item of the list, which clients name clicks/0 and clicks/1. The cluster
file then has neither server nor model nor data (docs/operations.md).

When all jobs are joined, the agent drops its capabilities. It serves until it is
interrupted. The jobs go on, and the host may come back, unless its file says that it has
finished its part.`,
		Example: `  libra agent --config agent.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.config == "" {
				return usagef(cmd, "--config is required")
			}
			c, err := cluster.ReadAgent(p.config)
			if err != nil {
				return err
			}
			p.out = cmd.OutOrStdout()
			if os.Getenv("GOGC") == "" {
				// The sums of a step are as much as all else that an agent holds, so it would
				// collect every few steps.
				debug.SetGCPercent(400)
			}
			return node.RunAgent(cmd.Context(), c, slog.Default(), p.reportReady)
		},
	}
	cmd.Flags().StringVar(&p.config, "config", "", "agent configuration `file` (required)")
	cmd.Flags().BoolVar(&p.json, "json", false, "print a JSON line when ready")
	return cmd
}
