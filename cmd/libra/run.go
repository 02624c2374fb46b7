// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train/settings"
)

func newRun() *cobra.Command {
	var asJSON, pslite bool
	ps := demo.PSLite{Servers: 1, Customers: 1}
	p := demo.Programs{
		Hosts: 1, Workers: 1, Job: "default", Dim: 1, Backend: cluster.BackendAFXDP, Optimizer: settings.Optimizer.Default,
		Seed: 1,
	}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENTS]",
		Short: "Run programs of any language as the workers of a cluster on this machine",
		Long: `Creates a network of namespaces with a switch in the middle, starts aggregator, server and
an agent on each host, and runs the command once for each worker. When all workers have
ended, the cluster is removed. The first worker that fails ends the others. When a worker
ends, the processes left in its process group are asked to terminate; if libra run itself
is killed (SIGKILL), its workers end, and what they have started may remain.

Workers find the agent of their host and the job's name in LIBRA_AGENT and LIBRA_JOB, and
have the variables that torchrun sets for its workers: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and so on. If the command is a Python, or a
script of one, whose PyTorch was built without libuv, as Debian's is, USE_LIBUV=0 is set, and said.
Their output is printed, prefixed with their rank if there are several.

With --record the keys and gradients that each worker pushes are written into a folder, as NumPy
files (docs/python.md), which 'libra bench push --trace' replays. It slows the workers down.

With --line-rate the lines of the hosts are as slow as that for what the programs themselves send,
as by gloo. What goes through Libra's sockets of AF_XDP is not slowed down.

With --pslite the command is a program of ps-lite, and runs as its scheduler, its servers and its
workers, which are dealt out to the hosts in this order. They have ps-lite's variables (DMLC_ROLE
and so on) and those of Libra's van; an argument {role} becomes the process's role. With --hot-set a
switch sums the hot pairs of their pushes; the variables of docs/pslite.md that are not set here,
such as LIBRA_STALENESS, are those of libra run. The first process that fails ends the others.

With --backend udp there are no namespaces: all hosts are this machine, and no
privileges are needed.`,
		Example: `  libra run --backend udp -- python3 train.py
  libra run --hosts 2 --workers 8 --sync --dim 16 -- python3 train.py
  libra run --workers 4 --sync --dim 16 --record trace -- python3 train.py
  libra run --hosts 4 --workers 4 --line-rate 250 -- python3 train.py
  libra run --pslite --backend udp --servers 2 --workers 2 --hot-set hot.libra --van libra_van.so -- ./train`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkPSLiteFlags(cmd, pslite); err != nil {
				return err
			}
			p.Stdout, p.Stderr, p.Log = cmd.OutOrStdout(), cmd.ErrOrStderr(), slog.Default()
			if verbose, _ := cmd.Flags().GetBool("verbose"); verbose {
				p.Logs = p.Stderr
			}
			p.Command = args
			ps.Command, ps.Hosts, ps.Workers = args, p.Hosts, p.Workers
			ps.HotSet, ps.Backend, ps.Harvest = p.HotSet, p.Backend, p.Harvest
			ps.Stdout, ps.Stderr, ps.Logs = p.Stdout, p.Stderr, p.Logs
			validate := p.Validate
			run := func(ctx context.Context) (*demo.ProgramsResult, error) { return demo.RunPrograms(ctx, p) }
			if pslite {
				validate = ps.Validate
				run = func(ctx context.Context) (*demo.ProgramsResult, error) { return demo.RunPSLite(ctx, ps) }
			}
			if err := errors.Join(checkCodingFlags(cmd), validate()); err != nil {
				return usagef(cmd, "%w", err)
			}
			result, err := run(cmd.Context())
			switch {
			case err != nil:
				return err
			case asJSON:
				return report.WriteJSON(cmd.OutOrStdout(), result)
			case pslite:
				return printPSLite(cmd.OutOrStdout(), result)
			}
			return printPrograms(cmd.OutOrStdout(), result)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the command has flags of its own
	f.IntVar(&p.Hosts, "hosts", p.Hosts, "number of hosts, each with an agent")
	f.IntVar(&p.Workers, "workers", p.Workers, "number of workers on all hosts together")
	f.StringVar(&p.Job, "job", p.Job, "name of the job at the agents")
	f.IntVar(&p.Dim, "dim", p.Dim, "floats of a row")
	f.IntVar(&p.HotRows, "hot-rows", 0,
		fmt.Sprintf("number of hot rows, which have the keys from 0 on (default %d; with --sync only the row of key 2^64-1)", demo.DefaultHotRows))
	f.StringVar(&p.HotSet, "hot-set", "", "hot-set `file`, in place of --hot-rows")
	f.IntVar(&p.Switches, "switches", 1, "number of switches among which a plan divides the --hot-set")
	f.BoolVar(&p.Sync, "sync", false, settings.Sync.Help(""))
	f.DurationVar(&p.Harvest, "harvest", 0, settings.Harvest.Help(settings.Harvest.Usual()))
	f.StringVar(&p.Optimizer, "optimizer", p.Optimizer,
		settings.Optimizer.Help("")+": adagrad, sgd, or none, for the sums of each step alone (with --sync)")
	f.Float64Var(&p.LearningRate, "learning-rate", 0, settings.LearningRate.Help(settings.LearningRate.Usual()))
	addCoding(f, &p.Coding)
	f.StringVar(&p.Backend, "backend", p.Backend, "afxdp (needs root) or udp")
	f.Float64Var(&p.LineRate, "line-rate", 0,
		"rate of each host's line in Mb/s, for what programs send through sockets; frames of AF_XDP pass it by (default: no limit)")
	f.StringVar(&p.Record, "record", "", "new `folder` for what each worker pushes, as NumPy files")
	f.Uint64Var(&p.Seed, "seed", p.Seed, "seed of the initial weights; with --dim 1 they are zeros")
	f.BoolVar(&pslite, "pslite", false, "the command is a program of ps-lite")
	f.IntVar(&ps.Servers, "servers", ps.Servers, "pslite: number of servers")
	f.IntVar(&ps.Customers, "customers", ps.Customers, "pslite: number of workers that a process is")
	f.StringVar(&ps.Van, "van", "", "pslite: `file` of the van, libra_van.so, to preload (default: it is linked into the program)")
	f.BoolVar(&ps.Namespaces, "namespaces", false, "pslite: a namespace for each host also with --backend udp (needs root)")
	f.Float64Var(&ps.Faults.Loss, "loss", 0, "pslite: probability that a frame with hot pairs is lost")
	f.Float64Var(&ps.Faults.Duplicate, "duplicate", 0, "pslite: probability that such a frame arrives twice")
	f.Float64Var(&ps.Faults.Reorder, "reorder", 0, "pslite: probability that later frames overtake such a frame")
	f.BoolVar(&asJSON, "json", false, "print one JSON object as the last line of standard output")
	choices(cmd, "optimizer", "adagrad", "sgd", "none")
	choices(cmd, "backend", cluster.BackendAFXDP, cluster.BackendUDP)
	return cmd
}

// checkPSLiteFlags refuses flags that are not for this kind of program.
func checkPSLiteFlags(cmd *cobra.Command, pslite bool) error {
	wrong := []string{"servers", "customers", "van", "namespaces", "loss", "duplicate", "reorder"}
	text := "--%s is for --pslite: add that, or leave it out"
	if pslite {
		wrong = []string{"job", "dim", "hot-rows", "switches", "sync", "optimizer", "learning-rate", "codec-bound",
			"codec-scale", "record", "seed"}
		text = "--%s is for jobs with a server of Libra's, which a program of ps-lite has not: leave it out"
	}
	for _, name := range wrong {
		if cmd.Flags().Changed(name) {
			return usagef(cmd, text, name)
		}
	}
	return nil
}

// printPSLite prints how the processes of ps-lite have ended.
func printPSLite(w io.Writer, r *demo.ProgramsResult) error {
	var rows [][]any
	row := func(name string, p demo.ProgramDone) {
		rows = append(rows, []any{name, p.Host, fmt.Sprintf("%.2f s", p.Seconds), fmt.Sprintf("%.2f s", p.CPUSeconds)})
	}
	row("scheduler", *r.Scheduler)
	for _, p := range r.Servers {
		row(fmt.Sprintf("server %d", p.Rank), p)
	}
	for _, p := range r.Workers {
		row(fmt.Sprintf("worker %d", p.Rank), p)
	}
	return report.Table(w, []string{"process", "host", "time", "CPU time"}, rows)
}

// printPrograms prints the outcome as one table.
func printPrograms(w io.Writer, r *demo.ProgramsResult) error {
	count := func(n uint64) string { return humanize.Comma(int64(n)) }
	var cpu float64
	for _, worker := range r.Workers {
		cpu += worker.CPUSeconds
	}
	rows := [][]any{
		{"backend", r.Backend},
		{"hosts", r.Hosts},
		{"workers", len(r.Workers)},
		{"time", time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Millisecond).String()},
		{"CPU time of the workers", fmt.Sprintf("%.1f s", cpu)},
		{"steps", count(r.Steps)},
		{"pairs summed in the network", count(r.HotPairs)},
		{"frames to the switch", count(r.HotFrames)},
		{"frames to the server", count(r.ColdFrames)},
	}
	if r.WeightsSHA256 != "" {
		rows = append(rows, []any{"rows at the server", humanize.Comma(int64(r.Rows))},
			[]any{"SHA-256 of the weights", r.WeightsSHA256})
	}
	return report.Table(w, []string{"", ""}, rows)
}
