// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

func newPlanApply() *cobra.Command {
	var config string
	var version uint64
	cmd := &cobra.Command{
		Use:   "apply --config FILE PLAN",
		Short: "Make a running job follow another plan",
		Long: `Makes the job of the cluster file follow the plan of a file that 'libra plan --json' has
printed, while the training goes on. It returns when all workers have adopted the plan,
and the shares that it does not have any more are removed. A plan that cannot be followed
changes nothing. With --based-on, it is refused if the job follows another version by
now. With TLS, the certificate must be for libra://operator or libra://switch; without,
the command must run on the host of the (first) parameter server.`,
		Example: `  libra plan --config cluster.yaml --without left --json > plan.json
  libra plan apply --config cluster.yaml plan.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "give one file with a plan, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readForOperator(cmd, config)
			if err != nil {
				return err
			}
			report, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			return askFirstServer(cmd, c, func(ctx context.Context, server pb.ParameterServerClient) error {
				req := &pb.ChangePlanRequest{Job: uint32(c.Job.ID), Version: version, Report: report}
				answer, err := server.ChangePlan(ctx, req)
				if err != nil {
					return access.CallError("parameter server", "change plan", err)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), follows(c, answer))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "cluster configuration `file`, the same as the server's")
	cmd.Flags().Uint64Var(&version, "based-on", 0, "`version` of the plan on which this one is based (default: whichever the job follows)")
	return cmd
}

// readForOperator reads the cluster file of a command to a running job.
func readForOperator(cmd *cobra.Command, config string) (*cluster.Config, error) {
	if config == "" {
		return nil, usagef(cmd, "--config is required: which job?")
	}
	c, err := cluster.ReadAny(config)
	if err == nil && c.Serverless() {
		err = fmt.Errorf("%s has no parameter server: a job without one cannot leave its switch", config)
	}
	return c, err
}

// askFirstServer calls the first server of a job, which must answer within drainLimit.
func askFirstServer(cmd *cobra.Command, c *cluster.Config,
	call func(context.Context, pb.ParameterServerClient) error) error {
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return err
	}
	conn, err := access.Dial(cmd.Context(), access.ServerOf(c.Job.ID), c.AllServers()[0].Control, security, answerLimit,
		slog.Default())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, end := context.WithTimeout(cmd.Context(), drainLimit)
	defer end()
	return call(ctx, pb.NewParameterServerClient(conn))
}

// follows says which plan a job follows.
func follows(c *cluster.Config, p *pb.ChangePlanResponse) string {
	return fmt.Sprintf("job %d follows plan %d, with shares at %s: %d opened, %d closed", c.Job.ID, p.Version,
		strings.Join(p.Switches, ", "), p.Opened, p.Closed)
}
