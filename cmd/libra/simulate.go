// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/simulation"
)

// tail is how many lines of a trace are shown unless all are asked for.
const tail = 30

func newSimulate() *cobra.Command {
	var (
		seed            uint64
		seeds           string
		lives, only     []string
		duration        time.Duration
		asJSON, whole   bool
		pages           bool
		parallel        = runtime.GOMAXPROCS(0)
		everyLife       = simulation.EveryLife()
		unlimited       = time.Duration(math.MaxInt64)
		shorteningLimit = 2 * time.Minute
	)
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate workers, clusters and host agents in virtual time, and look for violated guarantees",
		Long: `Runs the code of this program in a simulation: workers or host agents, parameter
server and aggregator in one process, in virtual time, on a network that loses,
duplicates, delays, corrupts and partitions, with processes that crash and
machines that lose power. A seed determines everything. After each step, all
gradients are counted.

It ends with exit code 1 at the first violation, and prints the smallest life
that has one: its seed, the reduced set of events, the end of its trace, and a
Go test that repeats it. If the program itself panics, the printed stacks name
the life. docs/simulation.md lists what is checked.`,
		Example: `  libra simulate --duration 10m
  libra simulate --seeds 1-1000 --lives clusters --only crash,reset
  libra simulate --seed 7 --trace`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kinds, err := simulation.ParseKinds(strings.Join(only, ","))
			if err != nil {
				return usagef(cmd, "--only: %w", err)
			}
			c := simulation.Campaign{Lives: everyLife, Kinds: kinds, Parallel: parallel, Pages: pages}
			if len(lives) > 0 {
				c.Lives = nil
			}
			for _, life := range lives {
				c.Lives = append(c.Lives, simulation.Life(life))
			}
			given := cmd.Flags().Changed
			limit := unlimited
			switch {
			case given("seed") && given("seeds"):
				return usagef(cmd, "--seed and --seeds exclude each other")
			case given("duration"):
				limit = duration
			case !given("seed") && !given("seeds"):
				limit = duration
			}
			switch {
			case given("seed"):
				c.First, c.Last = seed, seed
			case given("seeds"):
				if c.First, c.Last, err = seedRange(seeds); err != nil {
					return usagef(cmd, "--seeds: %w", err)
				}
			default: // different ones each time
				c.First, c.Last = rand.Uint64N(1<<40), math.MaxUint64
			}
			debug.SetGCPercent(400) // more collections cost time, fewer cost memory that is new to the caches and to the kernel
			s := simulating{cmd: cmd, json: asJSON, whole: whole, limit: limit, shortening: shorteningLimit,
				in: simulation.Bubbles()}
			return s.runCampaign(c)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&seed, "seed", 0, "run the lives of one seed")
	f.StringVar(&seeds, "seeds", "", "run the lives of the seeds `A-B` (default: starting at a random one)")
	f.DurationVar(&duration, "duration", time.Minute,
		"start no life after this time (with --seed and --seeds only if given)")
	f.StringSliceVar(&only, "only", nil, "kinds of trouble (default: all)")
	f.StringSliceVar(&lives, "lives", nil, "kinds of lives (default: all)")
	f.BoolVar(&pages, "pages", false, "of the lives of workers, only those whose hot sets have several pages")
	choices(cmd, "only", simulation.KindNames()...)
	var names []string
	for _, life := range everyLife {
		names = append(names, string(life))
	}
	choices(cmd, "lives", names...)
	f.BoolVar(&whole, "trace", false, "print the whole trace of a violation, or of the only seed")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// seedRange reads A-B.
func seedRange(text string) (first, last uint64, err error) {
	a, b, found := strings.Cut(text, "-")
	first, err = strconv.ParseUint(a, 10, 64)
	if last, _ = strconv.ParseUint(b, 10, 64); err != nil || !found || last < first || strconv.FormatUint(last, 10) != b {
		return 0, 0, fmt.Errorf("%q: two numbers are needed, such as 1-100", text)
	}
	return first, last, nil
}

// Simulated is the JSON object of 'libra simulate'.
type Simulated struct {
	*simulation.Report
	Shortest *simulation.Violation `json:"shortest,omitempty"` // the smallest life that has the violation
	Test     string                `json:"test,omitempty"`     // a Go test that lives it again
}

// simulating is one run of the command.
type simulating struct {
	cmd               *cobra.Command
	json, whole       bool
	limit, shortening time.Duration
	in                simulation.Bubble
}

func (s simulating) runCampaign(c simulation.Campaign) error {
	ctx, cancel := context.WithTimeout(s.cmd.Context(), s.limit)
	defer cancel()
	total := int64(min(c.Last-c.First, 1<<40)) + 1
	unit, done := "seeds", func(r *simulation.Report) int64 { return int64(r.Seeds) }
	if c.Last == math.MaxUint64 {
		total, unit = int64(s.limit.Seconds()), "seconds"
		done = func(r *simulation.Report) int64 { return int64(r.Elapsed.Seconds()) }
	}
	progress := report.NewProgress(s.cmd.ErrOrStderr(), total, unit)
	c.Progress = func(r *simulation.Report) {
		progress.Update(done(r), fmt.Sprintf("%s lives of workers, %s of clusters, %s of agents, %s of reducers, %s of rings from seed %d on",
			humanize.Comma(int64(r.Workers.Lives)), humanize.Comma(int64(r.Clusters.Lives)),
			humanize.Comma(int64(r.Agents.Lives)), humanize.Comma(int64(r.Reducers.Lives)),
			humanize.Comma(int64(r.Rings.Lives)), c.First))
	}
	r, err := c.Run(ctx, s.in)
	progress.Finish()
	if err != nil {
		return err
	}
	var shortest *simulation.Violation
	if len(r.Violations) > 0 {
		shorten, cancel := context.WithTimeout(s.cmd.Context(), s.shortening)
		defer cancel()
		shortest = r.Violations[0].Shortest(shorten, s.in)
	}
	if err := s.printReport(r, shortest, c); err != nil {
		return err
	}
	if shortest != nil {
		return fmt.Errorf("a promise is broken: %w", r.Violations[0])
	}
	return s.cmd.Context().Err()
}

func (s simulating) printReport(r *simulation.Report, v *simulation.Violation, c simulation.Campaign) error {
	w := s.cmd.OutOrStdout()
	if s.json {
		out := Simulated{Report: r, Shortest: v}
		if v != nil {
			out.Test = v.Test()
		}
		return report.WriteJSON(w, out)
	}
	if v == nil && s.whole && c.First == c.Last {
		for _, life := range c.Lives {
			if err := s.printTrace(w, life, simulation.Options{Seed: c.First, Kinds: c.Kinds}, math.MaxInt); err != nil {
				return err
			}
		}
	}
	p := report.NewPrinter(w)
	p.Table(fmt.Sprintf("Lives of the %s seeds from %d on, %s of wall time", humanize.Comma(int64(r.Seeds)), r.First,
		r.Elapsed.Round(time.Millisecond)),
		[]string{"", "workers", "clusters", "agents", "reducers", "rings"}, [][]any{
			{"lives", r.Workers.Lives, r.Clusters.Lives, r.Agents.Lives, r.Reducers.Lives, r.Rings.Lives},
			{"steps", r.Workers.Steps, r.Clusters.Steps, r.Agents.Steps, r.Reducers.Steps, r.Rings.Steps},
			{"frames", r.Workers.Traffic.Frames, r.Clusters.Traffic.Frames, r.Agents.Traffic.Frames, r.Reducers.Traffic.Frames,
				r.Rings.Traffic.Frames},
			{"crashes, losses of power", r.Workers.Crashes, r.Clusters.Kills, r.Agents.Kills, r.Reducers.Crashes,
				r.Rings.Crashes},
			{"virtual time", r.Workers.Virtual.Round(time.Second), r.Clusters.Virtual.Round(time.Second), r.Agents.Virtual.Round(time.Second),
				r.Reducers.Virtual.Round(time.Second), r.Rings.Virtual.Round(time.Second)},
		})
	if v == nil {
		return p.Err()
	}
	p.Note("VIOLATION in a life of %s: %v", v.Life, r.Violations[0])
	p.Note("Live it again: %s --trace", r.Violations[0].Options.Replay(v.Life))
	p.Note("The smallest life that was found to have one: %v", v)
	if p.Err() != nil {
		return p.Err()
	}
	lines := tail
	if s.whole {
		lines = math.MaxInt
	}
	if err := s.printTrace(w, v.Life, v.Options, lines); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s", v.Test())
	return err
}

// printTrace prints the last lines of a life's trace.
func (s simulating) printTrace(w io.Writer, life simulation.Life, o simulation.Options, lines int) error {
	var trace bytes.Buffer
	o.Trace = &trace
	var err error
	switch life {
	case simulation.Clusters:
		_, err = simulation.RunCluster(s.in, o)
	case simulation.Agents:
		_, err = simulation.RunAgents(s.in, o)
	case simulation.Reducers:
		_, err = simulation.RunReducers(s.in, o)
	case simulation.Rings:
		_, err = simulation.RunRings(s.in, o)
	default:
		_, err = simulation.Run(s.in, o)
	}
	if v := (*simulation.Violation)(nil); err != nil && !errors.As(err, &v) {
		return err
	}
	all := bytes.SplitAfter(trace.Bytes(), []byte("\n"))
	for _, line := range all[max(0, len(all)-1-lines):] {
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return nil
}
