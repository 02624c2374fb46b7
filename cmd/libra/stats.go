package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/report"
)

// answerLimit is how long a control service may take to answer.
const answerLimit = 5 * time.Second

func newStats() *cobra.Command {
	var (
		config string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "stats ADDRESS",
		Short: "Show the statistics of a running switch or parameter server",
		Long: `Asks the control service at ADDRESS (IP:port, as in the cluster configuration's
control fields) for its counters, jobs, slots and harvests. --config gives the
certificates, where control connections use mutual TLS.`,
		Example: `  libra stats 10.0.0.1:7700
  libra stats 10.0.0.2:7700 --config cluster.yaml --json`,
		Args: oneArg("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return usagef(cmd, "%q is not an IP:port", args[0])
			}
			var security control.Security
			if config != "" {
				c, err := cluster.Read(config)
				if err != nil {
					return err
				}
				if security, err = control.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
					return err
				}
			}
			conn, err := control.Dial(cmd.Context(), control.EitherService(), addr, security, answerLimit, slog.Default())
			if err != nil {
				return err
			}
			defer conn.Close()
			aggregator, server, err := control.Query(cmd.Context(), conn)
			switch {
			case err != nil:
				return err
			case asJSON && server != nil:
				return printMessage(cmd.OutOrStdout(), server)
			case asJSON:
				return printMessage(cmd.OutOrStdout(), aggregator)
			case server != nil:
				return printServer(cmd.OutOrStdout(), server)
			}
			return printAggregator(cmd.OutOrStdout(), aggregator)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "cluster configuration `file`, for its tls section")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// printMessage prints a message with the names of control.proto.
func printMessage(w io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

func printServer(w io.Writer, s *pb.ServerStats) error {
	rows := [][]any{
		{"rows", count(s.Rows)}, {"steps", count(s.Steps)}, {"harvests", count(s.Harvests)},
	}
	return report.Table(w, []string{"parameter server", ""}, append(rows, counterRows(s.Counters)...))
}

func printAggregator(w io.Writer, s *pb.AggregatorStats) error {
	rows := [][]any{
		{"jobs", len(s.Jobs)},
		{"senders reserved", fmt.Sprintf("%s of %s", count(s.SendersUsed), count(s.Senders))},
		{"slots in use", fmt.Sprintf("%s of %s", count(s.SlotsUsed), count(s.Slots))},
		{"memory of banks", humanize.IBytes(s.MemoryBytes)},
	}
	if err := report.Table(w, []string{"aggregator", ""}, append(rows, counterRows(s.Counters)...)); err != nil {
		return err
	}
	for _, j := range s.Jobs {
		fmt.Fprintln(w)
		if err := report.Table(w, []string{fmt.Sprintf("job %d", j.Job), ""}, jobRows(j)); err != nil {
			return err
		}
	}
	return nil
}

func jobRows(j *pb.JobStats) [][]any {
	kind := lower(j.Mode, "MODE_") + ", " + lower(j.Arithmetic, "ARITHMETIC_")
	if j.Exponent != 0 {
		kind += fmt.Sprintf(" (unit 2^%d)", j.Exponent)
	}
	owner := fmt.Sprintf("%s, connected; lease %v", j.Owner, lease(j))
	if !j.Held {
		owner = fmt.Sprintf("%s, not connected; lease ends in %v", j.Owner, lease(j))
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
	if j.Mode != pb.Mode_MODE_SYNC {
		rows = append(rows,
			[]any{"harvests", count(j.Harvests)},
			[]any{"harvest due", harvestDue(j)},
			[]any{"harvest interval", timing(j.HarvestInterval)},
			[]any{"server holds a harvest", timing(j.HarvestHeld)},
		)
	}
	return append(rows, counterRows(j.Counters)...)
}

// harvestDue says when a job asks for its harvests.
func harvestDue(j *pb.JobStats) string {
	var due []string
	if j.HarvestPeriodUs > 0 {
		due = append(due, fmt.Sprintf("every %v", time.Duration(j.HarvestPeriodUs)*time.Microsecond))
	}
	if j.HarvestFrames > 0 {
		due = append(due, fmt.Sprintf("after %s frames", count(j.HarvestFrames)))
	}
	if len(due) == 0 {
		return "when asked"
	}
	return strings.Join(due, ", or ")
}

func timing(t *pb.Timing) string {
	if t.GetCount() == 0 {
		return "–"
	}
	round := func(ns uint64) time.Duration { return time.Duration(ns).Round(10 * time.Microsecond) }
	return fmt.Sprintf("last %v, mean %v, max %v", round(t.LastNs), round(t.MeanNs), round(t.MaxNs))
}

func counterRows(counters map[string]uint64) [][]any {
	var rows [][]any
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		rows = append(rows, []any{name, count(counters[name])})
	}
	return rows
}

func count(n uint64) string { return humanize.Comma(int64(n)) }

// lower returns an enum value's name without its prefix.
func lower(v fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), prefix))
}
