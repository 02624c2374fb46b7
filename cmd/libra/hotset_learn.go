// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
)

// countersOfRow is how many counters there are for each hot row: the paper's sketches need several.
const countersOfRow = 8

// LearnedHotSet is the JSON object of 'libra hotset learn'.
type LearnedHotSet struct {
	HotSet
	Job         string  `json:"job"`
	Pushes      uint64  `json:"pushes"`      // that came meanwhile
	Sampled     uint64  `json:"sampled"`     // those of them whose keys were counted
	Updates     uint64  `json:"updates"`     // keys in them
	CountErr    uint64  `json:"count_err"`   // a count is at most this much too high
	Seconds     float64 `json:"duration_s"`  // for which keys were counted
	Interrupted bool    `json:"interrupted"` // before --for had passed
}

func newHotsetLearn() *cobra.Command {
	var (
		config, socket, job, out string
		rows                     int
		length                   time.Duration
		asJSON                   bool
		principle                heat.Principle
	)
	cmd := &cobra.Command{
		Use:   "learn --out FILE [--config FILE | --agent SOCKET] [--job NAME]",
		Short: "Find the hot parameters of a running job from the keys that a host's clients push",
		Long: `Has the host agent of a running job count the keys that its clients push, in
bounded memory, and writes the hottest, in rank order, to a file as 'libra hotset
build' does: for programs whose training data cannot be scanned beforehand. How
many are hot follows the paper's Principle 1 unless --hot-rows sets it.

The job keeps running, and uses the new hot set when it is next started with it.
Pushes that arrive faster than they can be counted are skipped. Ctrl-C ends the
counting early and keeps the counts. Only root and the agent's own user may do
this. --config takes the file of 'libra agent', which names its socket.`,
		Example: `  libra hotset learn --for 30s --out hot.libra
  libra hotset learn --config agent.yaml --job clicks --out hot.libra
  libra hotset learn --agent agent.sock --job clicks --hot-rows 30000 --out hot.libra`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usagef(cmd, "--out is required")
			}
			if rows > agent.MaxLearned {
				return usagef(cmd, "--hot-rows %d: at most %d rows can be learnt: ask for fewer, or find them in the training data (libra hotset build)",
					rows, agent.MaxLearned)
			}
			if err := checkOutput(cmd, out); err != nil {
				return err
			}
			if config != "" {
				if cmd.Flags().Changed("agent") {
					return usagef(cmd, "--config and --agent both name the agent's socket: leave one of them out")
				}
				c, err := cluster.ReadAgent(config)
				if err != nil {
					return err
				}
				socket = cmp.Or(c.Socket, agentproto.DefaultSocket)
				served := func(j cluster.AgentJob) bool { return j.Name == job }
				if job != "" && !slices.ContainsFunc(c.Jobs, served) {
					return usagef(cmd, "--job %s: %s has no such job", job, config)
				}
			}
			wanted := cmp.Or(rows, packer.PageSlots)
			start := time.Now()
			until, stop := context.WithTimeout(cmd.Context(), length)
			defer stop()
			ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
			defer cancel()
			context.AfterFunc(until, func() { time.AfterFunc(answerLimit, cancel) })
			learned, err := agent.Learn(ctx, until, socket, job, min(countersOfRow*wanted, agent.MaxCounters))
			if err != nil {
				return err
			}
			took, early := min(time.Since(start), length), cmd.Context().Err() != nil
			if early {
				fmt.Fprintf(cmd.ErrOrStderr(), "interrupted after %v: what was learnt until then is kept, if anything\n",
					took.Round(time.Millisecond))
			}
			if learned.Updates == 0 {
				return fmt.Errorf("no client of job %s pushed within %v, so %s was not written: start the training, or give more time by --for", learned.Job, took.Round(time.Millisecond), out)
			}
			meta := packer.Meta{Rate: float64(learned.Sampled) / float64(learned.Pushes), Rows: learned.Sampled}
			ranking := learned.Ranking()
			var hot *packer.HotSet
			if rows > 0 {
				if most := packer.MaxHotRows(learned.Dim); rows > most {
					return usagef(cmd, "--hot-rows %d: a job has at most %d rows of %d scalars", rows, most, learned.Dim)
				}
				hot, err = ranking.Top(rows, learned.Dim, meta)
			} else {
				hot, err = principle.HotSet(ranking, learned.Dim, meta)
			}
			if err != nil {
				return err
			}
			if err := packer.SaveHotSet(out, hot); err != nil {
				return err
			}
			sayFewer(cmd.ErrOrStderr(), hot, rows, "clients pushed no more keys: give more time by --for")
			if asJSON {
				return report.WriteJSON(cmd.OutOrStdout(), LearnedHotSet{
					HotSet: HotSet{hot.Len(), hot.Dim(), hot.Slots(), hot.Meta().Share(), meta.Rate,
						hot.Fingerprint().String(), nil, nil},
					Job: learned.Job, Pushes: learned.Pushes, Sampled: learned.Sampled, Updates: learned.Updates,
					CountErr: learned.CountErr,
					Seconds:  took.Seconds(), Interrupted: early,
				})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d hot rows of %d scalars (%d slots) take %.1f %% of the updates that were counted: %s in %s of %s pushes of job %s\nfingerprint %v\n",
				hot.Len(), hot.Dim(), hot.Slots(), 100*hot.Meta().Share(), humanize.Comma(int64(learned.Updates)),
				humanize.Comma(int64(learned.Sampled)), humanize.Comma(int64(learned.Pushes)), learned.Job, hot.Fingerprint())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "agent configuration `file`, in place of --agent")
	f.StringVar(&socket, "agent", agentproto.DefaultSocket, "`socket` of the host agent")
	f.StringVar(&job, "job", "", "`name` of the job in the agent's file (default: its only job)")
	f.StringVar(&out, "out", "", "hot-set `file` to write")
	f.DurationVar(&length, "for", 30*time.Second, "time to count for")
	f.IntVar(&rows, "hot-rows", 0, "number of hot rows (default: by Principle 1)")
	f.Float64Var(&principle.Share, "p", 0, "Principle 1: share of the updates that the hot parameters must receive")
	f.Float64Var(&principle.MemoryShare, "c", 0, fmt.Sprintf("Principle 1: share of a %d MiB chip to use (default %v)",
		heat.DefaultChipBytes>>20, heat.DefaultMemoryShare))
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}
