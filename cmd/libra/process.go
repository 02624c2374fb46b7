// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/train"
)

// progressPeriod is the time between two reports of a worker's progress.
const progressPeriod = 200 * time.Millisecond

const configHelp = `
All processes of a cluster read the same YAML file; 'libra config example' prints one.`

// process is what the commands switch, ps and worker have in common: they read
// a cluster's configuration, say when they are ready, and print a result.
type process struct {
	config  string
	json    bool
	changes []func(*cluster.Config) // by flags

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
	c, err := cluster.Read(p.config, p.changes...)
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
	if err := p.line(SwitchLine{Ready: new(os.Getpid())}); err != nil { // as package proc reads it
		slog.Warn("cannot announce readiness", "error", err)
	}
}

// WorkerLine is a line of 'libra worker --json', with one of its members.
type WorkerLine struct {
	Ready    *int               `json:"ready,omitempty"`    // process ID, once it has joined
	Progress *train.Progress    `json:"progress,omitempty"` // from time to time
	Result   *node.WorkerResult `json:"result,omitempty"`   // at the end
}

// ServerLine is a line of 'libra ps --json', with one of its members.
type ServerLine struct {
	Ready      *int               `json:"ready,omitempty"`      // process ID, once it serves
	Evaluation *node.Evaluation   `json:"evaluation,omitempty"` // after each epoch, with data.test
	Result     *node.ServerResult `json:"result,omitempty"`     // at the end
}

// SwitchLine is the line of 'libra switch --json' and 'libra agent --json', and the first one of the others.
type SwitchLine struct {
	Ready *int `json:"ready,omitempty"` // process ID, once it serves
}

// line prints one JSON object.
func (p *process) line(value any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return report.WriteJSON(p.out, value)
}

func newSwitch() *cobra.Command {
	var p process
	cmd := &cobra.Command{
		Use:   "switch --config FILE",
		Short: "Run the aggregator: its data plane and the control daemon Libra_s",
		Long: `Attaches the XDP aggregator to the switch's interfaces (backend afxdp), opens
its UDP socket (backend udp) or loads the P4 program into a switch (plane p4), and
serves jobs until it is interrupted. At its end it detaches what it attached, and
removes its jobs from a P4 switch, which keeps forwarding.

The flags --plane and --p4-* override the file's switch section.` + configHelp,
		Example: `  libra switch --config cluster.yaml
  libra switch --config cluster.yaml --plane p4 --p4-runtime 127.0.0.1:9559 --p4-ports 1,2,3`,
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
	p.planeFlags(cmd)
	return cmd
}

// planeFlags adds flags for fields of the configuration's switch.
func (p *process) planeFlags(cmd *cobra.Command) {
	var s cluster.Switch
	f := cmd.Flags()
	f.StringVar(&s.Plane, "plane", "", "data plane: xdp, model or p4 (default the backend's: xdp or model)")
	f.StringVar(&s.P4.Runtime, "p4-runtime", "", "P4Runtime `address` of the P4 switch: host:port, or unix:path")
	f.StringVar(&s.P4.Info, "p4-info", "", "P4Info `file` of a compiled program (default: the program that libra has)")
	f.StringVar(&s.P4.Config, "p4-config", "", "device configuration `file` of the same program")
	f.Uint64Var(&s.P4.Device, "p4-device", 0, "number of the P4 switch at its address")
	f.Uint64Var(&s.P4.Election, "p4-election", 0, fmt.Sprintf("election ID: the controller with the highest is the switch's primary (default %d)", p4.DefaultElection))
	f.BoolVar(&s.P4.Replace, "p4-replace", false, "replace another program that the P4 switch runs")
	choices(cmd, "plane", cluster.PlaneXDP, cluster.PlaneModel, cluster.PlaneP4)
	ports := f.UintSlice("p4-ports", nil, "`ports` of the P4 switch that have hosts behind them")
	set := func(flag string, apply func(c *cluster.Switch)) {
		p.changes = append(p.changes, func(c *cluster.Config) {
			if f.Changed(flag) {
				apply(&c.Switch)
			}
		})
	}
	set("plane", func(c *cluster.Switch) {
		if s.Plane == cluster.PlaneP4 && c.Plane != s.Plane { // it has other ports, and takes other frames
			c.Interfaces, c.XDPMode, c.ThreadedNAPI, c.Stripes, c.LaneAligned = nil, "", false, 1, true
		}
		c.Plane = s.Plane
	})
	set("p4-runtime", func(c *cluster.Switch) { c.P4.Runtime = s.P4.Runtime })
	set("p4-info", func(c *cluster.Switch) { c.P4.Info = s.P4.Info })
	set("p4-config", func(c *cluster.Switch) { c.P4.Config = s.P4.Config })
	set("p4-device", func(c *cluster.Switch) { c.P4.Device = s.P4.Device })
	set("p4-election", func(c *cluster.Switch) { c.P4.Election = s.P4.Election })
	set("p4-replace", func(c *cluster.Switch) { c.P4.Replace = s.P4.Replace })
	set("p4-ports", func(c *cluster.Switch) {
		c.P4.Ports = nil
		for _, port := range *ports {
			c.P4.Ports = append(c.P4.Ports, uint32(min(port, math.MaxUint32)))
		}
	})
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
			env, err := p.env(cmd)
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
					if err := p.line(ServerLine{Evaluation: &e}); err != nil {
						slog.Warn("cannot report an evaluation", "error", err)
					}
				}
			}
			result, err := node.RunServer(cmd.Context(), env)
			if err != nil {
				return err
			}
			if p.json {
				return p.line(ServerLine{Result: result})
			}
			if result.WeightsSHA256 == "" {
				fmt.Fprintf(p.out, "sums of %d steps; no weights, as model.optimizer is none\n", result.Steps)
				return nil
			}
			fmt.Fprintf(p.out, "%d rows after %d steps; weights %s\n", result.Rows, result.Steps, result.WeightsSHA256)
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().IntVar(&index, "index", 0, "index of the server in the list servers of the configuration, from 0 (required if there are several)")
	cmd.Flags().Uint64Var(&step, "step", 0, "`step` of the checkpoint to resume from, one of the last two (default: the last; only several servers with job.sync)")
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
				return p.line(WorkerLine{Result: result})
			}
			loss := ""
			for _, l := range result.All() {
				loss = fmt.Sprintf(", %s %.4f", l.Name, l.Value)
			}
			fmt.Fprintf(p.out, "%d samples in %v%s; %d hot and %d cold pairs in %d frames, %d retransmissions\n",
				result.Samples, result.Elapsed.Round(time.Millisecond), loss, result.HotPairs, result.ColdPairs, result.Frames, result.Retransmissions)
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().Uint16Var(&id, "id", 0, "number of the worker in the configuration (required)")
	return cmd
}

// progress returns a function that reports a worker's progress from time to
// time: as JSON lines, or in the log.
func (p *process) progress() func(train.Progress) {
	period := progressPeriod
	if !p.json {
		period = 5 * time.Second
	}
	last := time.Now()
	return func(w train.Progress) {
		now := time.Now()
		if now.Sub(last) < period {
			return
		}
		last = now
		if !p.json {
			line := []any{"epoch", w.Epoch + 1, "samples", w.Samples}
			for _, l := range w.All() {
				line = append(line, l.Key, l.Value)
			}
			slog.Info("training", line...)
			return
		}
		if err := p.line(WorkerLine{Progress: &w}); err != nil {
			slog.Warn("cannot report progress", "error", err)
		}
	}
}
