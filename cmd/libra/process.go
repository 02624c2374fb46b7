package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/node"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/workload"
)

// progressPeriod is the time between two reports of a worker's progress.
const progressPeriod = 200 * time.Millisecond

const configHelp = `
All processes of a cluster read the same YAML file; README.md shows one.`

// process is what the commands switch, ps and worker have in common: they read
// a cluster's configuration, say when they are ready, and print a result.
type process struct {
	config string
	json   bool

	mu  sync.Mutex // one line at a time on out
	out io.Writer
}

func (p *process) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.config, "config", "", "cluster configuration `file` (required)")
	cmd.Flags().BoolVar(&p.json, "json", false, "print JSON lines: when ready, progress, the result")
}

// env reads the configuration.
func (p *process) env(cmd *cobra.Command) (node.Env, error) {
	if p.config == "" {
		return node.Env{}, usagef(cmd, "--config is required")
	}
	c, err := cluster.Read(p.config)
	if err != nil {
		return node.Env{}, err
	}
	p.out = cmd.OutOrStdout()
	return node.Env{Config: c, Log: slog.Default(), Ready: p.ready}, nil
}

func (p *process) ready() {
	if !p.json {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := proc.AnnounceReady(p.out, os.Getpid()); err != nil {
		slog.Warn("cannot announce readiness", "error", err)
	}
}

// line prints one JSON object with a single member.
func (p *process) line(kind string, value any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return json.NewEncoder(p.out).Encode(map[string]any{kind: value})
}

func newSwitch() *cobra.Command {
	var p process
	cmd := &cobra.Command{
		Use:   "switch --config FILE",
		Short: "Run the aggregator: its data plane and the control daemon Libra_s",
		Long: `Attaches the XDP aggregator to the switch's interfaces (backend afxdp) or opens
its UDP socket (backend udp) and serves jobs until it is interrupted. On its way
out it detaches what it attached.` + configHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := p.env(cmd)
			if err != nil {
				return err
			}
			return node.RunSwitch(cmd.Context(), env)
		},
	}
	p.flags(cmd)
	return cmd
}

func newServer() *cobra.Command {
	var p process
	cmd := &cobra.Command{
		Use:   "ps --config FILE",
		Short: "Run the parameter server of a job",
		Long: `Creates the job at the aggregator, takes the workers' cold gradients and the
aggregator's sums, answers pulls, and ends when all workers have finished.` + configHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := p.env(cmd)
			if err != nil {
				return err
			}
			result, err := node.RunServer(cmd.Context(), env)
			if err != nil {
				return err
			}
			if p.json {
				return p.line("result", result)
			}
			fmt.Fprintf(p.out, "%d rows after %d steps; weights %s\n", result.Rows, result.Steps, result.WeightsSHA256)
			return nil
		},
	}
	p.flags(cmd)
	return cmd
}

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
			env, err := p.env(cmd)
			if err != nil {
				return err
			}
			result, err := node.RunWorker(cmd.Context(), env, node.WorkerOptions{ID: id, Progress: p.progress()})
			if err != nil {
				return err
			}
			if p.json {
				return p.line("result", result)
			}
			fmt.Fprintf(p.out, "%d samples in %v, log-loss %.4f; %d hot and %d cold pairs in %d frames, %d retransmissions\n",
				result.Samples, result.Elapsed.Round(time.Millisecond), result.LogLoss, result.HotPairs, result.ColdPairs, result.Frames, result.Retransmissions)
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().Uint16Var(&id, "id", 0, "number of the worker in the configuration (required)")
	return cmd
}

// progress returns a function that reports a worker's progress from time to
// time: as JSON lines, or in the log.
func (p *process) progress() func(workload.Progress) {
	period := progressPeriod
	if !p.json {
		period = 5 * time.Second
	}
	last := time.Now()
	return func(w workload.Progress) {
		now := time.Now()
		if now.Sub(last) < period {
			return
		}
		last = now
		if !p.json {
			slog.Info("training", "epoch", w.Epoch+1, "samples", w.Samples, "log_loss", w.LogLoss)
			return
		}
		if err := p.line("progress", w); err != nil {
			slog.Warn("cannot report progress", "error", err)
		}
	}
}
