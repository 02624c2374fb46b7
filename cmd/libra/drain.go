// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// drainLimit is how long a job may take to move: workers send what the aggregator has not handed
// over.
const drainLimit = time.Minute

func newSwitchDrain() *cobra.Command {
	var config, to string
	cmd := &cobra.Command{
		Use:   "drain --config FILE [NAME]",
		Short: "Move a running job to another aggregator, or off a switch of its plan",
		Long: `Makes the job of the cluster file leave its aggregator, which may then be stopped,
while the training goes on: at the next standby that takes the job, or at the one of
--to. If there is none, hot rows go to the parameter server. It returns when the
job has moved, and prints where to; its status is 0 even if that is not where --to wanted.
Ctrl-C ends the command, but not what the server has begun.

A job with job.plan leaves the switch with a NAME: its parts go to other switches that have
room for them, or to the parameter server. The command returns when the switch's daemon
may be stopped; the machine forwards frames of others, as before. With TLS, the
certificate must be for libra://operator or libra://switch; without, the command must
run on the host of the (first) parameter server.`,
		Example: `  libra switch drain --config cluster.yaml
  libra switch drain --config cluster.yaml --to 10.0.0.9
  libra switch drain --config cluster.yaml left`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "give one name of a switch, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readForOperator(cmd, config)
			if err != nil {
				return err
			}
			req := &pb.DrainRequest{Job: uint32(c.Job.ID)}
			if len(args) > 0 {
				req.Switch = args[0]
			}
			if req.Switch != "" && to != "" {
				return usagef(cmd, "--to %s: a switch of a plan is left for the others: leave one of them out", to)
			}
			if to != "" {
				if req.To, err = aggregatorAt(c, to); err != nil {
					return usagef(cmd, "--to: %v", err)
				}
			}
			return askFirstServer(cmd, c, func(ctx context.Context, server pb.ParameterServerClient) error {
				answer, err := server.Drain(ctx, req)
				if err != nil {
					return access.CallError("parameter server", "drain", err)
				}
				said := ""
				if req.Switch != "" {
					said = drainedSwitch(c, req.Switch, answer)
				} else {
					said = drained(c, answer)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "cluster configuration `file`, the same as the server's")
	cmd.Flags().StringVar(&to, "to", "", "`address` of the aggregator that is to take the job: the switch's or a standby's")
	return cmd
}

// aggregatorAt returns the index of the aggregator with an address: of frames or, with a port, of
// its control service.
func aggregatorAt(c *cluster.Config, address string) (*uint32, error) {
	ip, err := netip.ParseAddr(address)
	control, failed := netip.ParseAddrPort(address)
	if err != nil && failed != nil {
		return nil, fmt.Errorf("%q is not an address", address)
	}
	for i, a := range c.Aggregators() {
		if a.Address == ip || a.Control == control {
			at := uint32(i)
			return &at, nil
		}
	}
	return nil, fmt.Errorf("%s is the address neither of switch nor of any of standbys", address)
}

// drainedSwitch is what the command prints when a job has left a switch of its plan.
func drainedSwitch(c *cluster.Config, name string, answer *pb.DrainResponse) string {
	said := fmt.Sprintf("switch %s has no share of job %d, and may be stopped: %s", name, c.Job.ID,
		follows(c, answer.Plan))
	if answer.Reason != "" {
		said += "; " + answer.Reason
	}
	return said
}

// drained is what it prints when a job has left its aggregator.
func drained(c *cluster.Config, answer *pb.DrainResponse) string {
	name := func(i uint32) string {
		all := c.Aggregators()
		switch {
		case int(i) >= len(all):
			return fmt.Sprintf("aggregator %d", i)
		case i == 0:
			return fmt.Sprintf("the switch at %v", all[0].Address)
		}
		return fmt.Sprintf("standby %d at %v", i-1, all[i].Address)
	}
	said := fmt.Sprintf("job %d has left %s, which may be stopped", c.Job.ID, name(answer.From))
	switch {
	case answer.To != nil && answer.Reason != "":
		return said + ": it goes on at " + name(*answer.To) + ". Others do not take it: " + answer.Reason
	case answer.To != nil:
		return said + ": it goes on at " + name(*answer.To)
	case answer.Reason != "":
		return said + ": hot rows go to the parameter server, until an aggregator takes the job. The others do not: " +
			answer.Reason
	}
	return said + ": hot rows go to the parameter server, as the cluster file has no standbys"
}
