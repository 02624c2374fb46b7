// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/report"
)

// answerLimit is how long a control service may take to answer.
const answerLimit = 5 * time.Second

func newStats() *cobra.Command {
	var (
		config, socket string
		asJSON         bool
	)
	cmd := &cobra.Command{
		Use:   "stats [ADDRESS] [--config FILE] [--agent SOCKET]",
		Short: "Show the statistics of running switches and parameter servers",
		Long: `Queries control services for their counters, jobs, slots, harvests and times of frames: the switches and
the parameter servers of a cluster file, or the one at ADDRESS (IP:port, as in the file's
control fields). Workers have no such service; they print their counters when they end.
With --agent, it shows the clients of this host's agent at SOCKET, to root and the agent's own user.
With --config, connections use the file's certificates, if it has any. The exit code is 1
if a process does not answer; the others are still shown.`,
		Example: `  libra stats --config cluster.yaml
  libra stats 10.0.0.1:7700
  libra stats 10.0.0.2:7700 --config cluster.yaml --json
  libra stats --agent /run/libra/agent.sock`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "one ADDRESS at most, %d are given", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var (
				security  access.Security
				addresses []netip.AddrPort
			)
			if config == "" && socket == "" && len(args) == 0 {
				return usagef(cmd, "--config, --agent or an ADDRESS is required: which processes?")
			}
			if config != "" {
				c, err := cluster.ReadAny(config)
				if err != nil {
					return err
				}
				if security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
					return err
				}
				for _, s := range c.Aggregators() {
					addresses = append(addresses, s.Control)
				}
				for _, i := range c.MoreSwitches() {
					addresses = append(addresses, c.Switches[i].Control)
				}
				for _, s := range c.AllServers() {
					addresses = append(addresses, s.Control)
				}
			}
			if len(args) > 0 {
				addr, err := netip.ParseAddrPort(args[0])
				if err != nil {
					return usagef(cmd, "%q is not an IP:port", args[0])
				}
				addresses = []netip.AddrPort{addr}
			}
			var (
				s    Statistics
				errs []error
			)
			for _, addr := range addresses {
				p, err := askProcess(cmd, addr, security)
				errs = append(errs, err)
				s.Processes = append(s.Processes, p)
			}
			if socket != "" {
				a, err := askAgent(cmd.Context(), socket)
				errs = append(errs, err)
				s.Agent = a
			}
			if asJSON {
				errs = append(errs, report.WriteJSON(cmd.OutOrStdout(), s))
			} else {
				errs = append(errs, s.print(cmd.OutOrStdout()))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "cluster configuration `file`: for its processes, and its tls section")
	cmd.Flags().StringVar(&socket, "agent", "", "`socket` of this host's agent")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// askProcess asks one control service. The returned statistics report the error, too.
func askProcess(cmd *cobra.Command, addr netip.AddrPort, security access.Security) (p ProcessStatistics, err error) {
	p.Address = addr.String()
	defer func() {
		if err != nil {
			p.Error = err.Error()
		}
	}()
	conn, err := access.Dial(cmd.Context(), access.EitherService(), addr, security, answerLimit, slog.Default())
	if err != nil {
		return p, err
	}
	defer conn.Close()
	aggregator, server, err := control.Query(cmd.Context(), conn)
	switch {
	case err != nil:
		return p, err
	case server != nil:
		p.Server = newServerStatistics(server)
	default:
		p.Switch = newSwitchStatistics(aggregator)
	}
	return p, nil
}

func (s *Statistics) print(w io.Writer) error {
	out := report.NewPrinter(w)
	for _, p := range s.Processes {
		switch {
		case p.Server != nil:
			p.Server.print(out, p.Address)
		case p.Switch != nil:
			p.Switch.print(out, p.Address)
		}
	}
	if s.Agent != nil && s.Agent.Stats != nil {
		s.Agent.print(out)
	}
	return out.Err()
}

func (s *ServerStatistics) print(out *report.Printer, address string) {
	rows := [][]any{
		{"rows", count(s.Rows)}, {"steps", count(s.Steps)}, {"harvests", count(s.Harvests)},
	}
	out.Table("Parameter server at "+address, []string{"", ""}, append(rows, counterRows(s.Counters)...))
	printLatencies(out, "Times at parameter server at "+address, s.Latencies)
}

func (s *SwitchStatistics) print(out *report.Printer, address string) {
	rows := [][]any{
		{"jobs", len(s.Jobs)},
		{"senders reserved", fmt.Sprintf("%s of %s", count(s.SendersUsed), count(s.Senders))},
		{"slots in use", fmt.Sprintf("%s of %s", count(s.SlotsUsed), count(s.Slots))},
		{"memory of banks", humanize.IBytes(s.MemoryBytes)},
	}
	out.Table("Switch at "+address, []string{"", ""}, append(rows, counterRows(s.Counters)...))
	for _, j := range s.Jobs {
		out.Table(fmt.Sprintf("Job %d", j.Job), []string{"", ""}, j.rows())
		printLatencies(out, fmt.Sprintf("Times of job %d", j.Job), j.Latencies)
	}
}

func (j *JobStatistics) rows() [][]any {
	kind := j.Mode + ", " + j.Arithmetic
	if j.Exponent != 0 {
		kind += fmt.Sprintf(" (unit 2^%d)", j.Exponent)
	}
	owner := fmt.Sprintf("%s, connected; lease %v", j.Owner, j.lease())
	if !j.Held {
		owner = fmt.Sprintf("%s, not connected; lease ends in %v", j.Owner, j.lease())
	}
	rows := [][]any{
		{"mode, arithmetic", kind},
		{"instance", j.Instance},
		{"owner", owner},
		{"epoch", j.Epoch},
		{"senders", fmt.Sprintf("%d of %d", j.Senders, j.SendersReserved)},
		{"slots", count(uint64(j.Slots))},
		{"memory of banks", humanize.IBytes(j.MemoryBytes)},
	}
	if j.Mode != "sync" {
		rows = append(rows,
			[]any{"harvests", count(j.Harvests)},
			[]any{"harvest due", j.harvestDue()},
			[]any{"harvest interval", j.HarvestInterval},
			[]any{"server holds a harvest", j.HarvestHeld},
			[]any{"oldest gradient when applied", j.GradientAge},
		)
	}
	for _, c := range j.Children {
		rows = append(rows, []any{fmt.Sprintf("child, job %d at %s", c.Job, c.Control), c})
	}
	return append(rows, counterRows(j.Counters)...)
}

func (c ChildStatistics) String() string {
	said := fmt.Sprintf("%s harvests, %s sent again; answer: %v", count(c.Harvests), count(c.Repeated), c.Answer)
	if c.BrokenStreams > 0 {
		said += fmt.Sprintf("; connection broken %s", english.Plural(int(c.BrokenStreams), "time", ""))
	}
	if c.Awaited > 0 {
		said += fmt.Sprintf("; asked %v ago", c.Awaited.Round(time.Millisecond))
	}
	return said
}

// lease returns how long a job outlives its owner.
func (j *JobStatistics) lease() time.Duration {
	return time.Duration(j.LeaseS * float64(time.Second)).Round(100 * time.Millisecond)
}

// harvestDue describes when a job's harvests are due.
func (j *JobStatistics) harvestDue() string {
	var due []string
	if j.HarvestPeriod > 0 {
		due = append(due, fmt.Sprintf("every %v", j.HarvestPeriod))
	}
	if j.HarvestFrames > 0 {
		due = append(due, fmt.Sprintf("after %s frames", count(j.HarvestFrames)))
	}
	if len(due) == 0 {
		return "when asked"
	}
	return strings.Join(due, ", or ")
}

func counterRows(counters map[string]uint64) [][]any {
	var rows [][]any
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		rows = append(rows, []any{name, count(counters[name])})
	}
	return rows
}

func count(n uint64) string { return humanize.Comma(int64(n)) }
