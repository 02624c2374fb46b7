// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/report"
)

// switchAccess holds the flags that find a switch's control service.
type switchAccess struct {
	config, control   string
	standby, standbys int // the one that is asked, and the configuration's number
	name              string
}

func (s *switchAccess) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.config, "config", "",
		"cluster configuration `file`, for the switch's control address and the tls section")
	cmd.Flags().StringVar(&s.control, "control", "",
		"control `address` (IP:port) of the switch, instead of the configuration's")
	cmd.Flags().IntVar(&s.standby, "standby", 0, "the standby with this `index` in the configuration, from 0, instead of the switch")
	cmd.Flags().StringVar(&s.name, "name", "", "the one of the configuration's switches with this `name`, instead of the switch")
}

// dialSwitch connects to the switch.
func (s *switchAccess) dialSwitch(cmd *cobra.Command) (*grpc.ClientConn, error) {
	var (
		security access.Security
		address  netip.AddrPort
	)
	chosen, named := cmd.Flags().Changed("standby"), cmd.Flags().Changed("name")
	switch {
	case s.config == "" && s.control == "":
		return nil, usagef(cmd, "--config or --control is required: which switch?")
	case chosen && named:
		return nil, usagef(cmd, "--name and --standby: they are different machines, so leave one of them out")
	case named && (s.config == "" || s.control != ""):
		return nil, usagef(cmd, "--name goes with --config, and without --control")
	case chosen && (s.config == "" || s.control != ""):
		return nil, usagef(cmd, "--standby goes with --config, and without --control")
	}
	if s.config != "" {
		c, err := cluster.ReadAny(s.config)
		if err != nil {
			return nil, err
		}
		if security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
			return nil, err
		}
		s.standbys = len(c.Standbys)
		if chosen {
			if c, err = c.ForStandby(s.standby); err != nil {
				return nil, usagef(cmd, "--standby: %v", err)
			}
		}
		if named {
			if c, err = c.ForSwitch(s.name); err != nil {
				return nil, usagef(cmd, "--name: %v", err)
			}
		}
		address = c.Switch.Control
	}
	if s.control != "" {
		var err error
		if address, err = netip.ParseAddrPort(s.control); err != nil {
			return nil, usagef(cmd, "--control: %q is not an IP:port", s.control)
		}
	}
	return access.Dial(cmd.Context(), access.TheSwitch(), address, security, answerLimit, slog.Default())
}

func newJob() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "List and remove the jobs of a running switch",
		Long: `A job belongs to the parameter server that created it, which removes it at its
end. The job of a server that was killed goes away by itself when its lease ends.`,
	}
	cmd.AddCommand(newJobList(), newJobRemove())
	return cmd
}

func newJobList() *cobra.Command {
	var (
		at     switchAccess
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show a switch's jobs and their owners",
		Long: `Shows each job with its instance, a number unique to every job ever created; the
address of its owner; whether the owner is connected; and how long the job
outlives its owner. With TLS, servers and workers see their own
jobs only.`,
		Example: `  libra job list --config cluster.yaml
  libra job list --config cluster.yaml --standby 0
  libra job list --control 10.0.0.1:7700 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := at.dialSwitch(cmd)
			if err != nil {
				return err
			}
			defer conn.Close()
			stats, err := pb.NewAggregatorClient(conn).Stats(cmd.Context(), &pb.StatsRequest{})
			if err != nil {
				return access.CallError(access.SwitchDaemon, "list jobs", err)
			}
			jobs := newJobStatistics(stats.Jobs)
			if asJSON {
				return report.WriteJSON(cmd.OutOrStdout(), JobList{jobs})
			}
			return printJobs(cmd.OutOrStdout(), jobs)
		},
	}
	at.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func printJobs(w io.Writer, jobs []JobStatistics) error {
	var rows [][]any
	for _, j := range jobs {
		rows = append(rows, []any{
			j.Job, j.Instance, j.Owner, yesNo(j.Held), j.lease(), j.Mode,
			fmt.Sprintf("%d of %d", j.Senders, j.SendersReserved), count(uint64(j.Slots)), count(j.Harvests),
		})
	}
	return report.Table(w, []string{"job", "instance", "owner", "connected", "lease", "mode", "senders", "slots",
		"harvests"}, rows)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newJobRemove() *cobra.Command {
	var (
		at       switchAccess
		instance uint64
	)
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Remove a job, its senders and its sums",
		Long: `Removes a job as an operator: with TLS, the certificate must be for
libra://operator or libra://switch; without, the command must run on the switch's
own host. Sums that were not harvested are lost, and the job's processes end with
an error. --instance removes the job only if it is still that instance.`,
		Example: `  libra job remove 7 --config cluster.yaml`,
		Args:    oneArg("job ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || id >= aggregator.MaxJobs {
				return usagef(cmd, "%q is no job ID: they are 0 to %d", args[0], aggregator.MaxJobs-1)
			}
			conn, err := at.dialSwitch(cmd)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = pb.NewAggregatorClient(conn).RemoveJob(cmd.Context(),
				&pb.RemoveJobRequest{Job: uint32(id), Instance: instance})
			missing := status.Code(err) == codes.NotFound
			err = access.CallError(access.SwitchDaemon, "remove job", err)
			if missing && at.standbys > 0 && at.control == "" {
				return fmt.Errorf("%w: it may be at another aggregator of the file: --standby 0 and so on, or none for the switch", err)
			}
			return err
		},
	}
	at.addFlags(cmd)
	cmd.Flags().Uint64Var(&instance, "instance", 0, "remove the job only if it is this `instance`; 0: any instance")
	return cmd
}
