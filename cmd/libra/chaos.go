// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/chaos"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/internal/report"
)

func newChaos() *cobra.Command {
	var (
		c       = chaos.Defaults()
		only    []string
		minutes float64
		asJSON  bool
		out     string
	)
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Train with real processes that are killed, in a network that fails, and compare with a reference",
		Long: `Trains with job.sync on a network of namespaces: two aggregators, a server and
workers at a plain bridge. Meanwhile it kills, suspends, restarts and drains
processes, and frames are lost, doubled, delayed and damaged, links fail, and
addresses and MTUs change. At the end, the weights must equal those of the same
training in one process, bit for bit.

A seed decides everything that befalls the cluster: what, at which step, for how
long, and whom. How the processes run meanwhile is up to the machine, so a seed may
have to be repeated. Each life has the next seed. The first that goes wrong ends the
run with exit code 1, the seed and the end of its trace. docs/chaos.md lists the kinds of
trouble. It needs root.`,
		Example: `  libra chaos --seed 7
  libra chaos --seed 1 --minutes 20
  libra chaos --lives 5 --only switch-kill,loss --out chaos.trace`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := cmd.Flags().Changed
			if given("minutes") {
				if !(minutes > 0 && minutes <= 100_000) {
					return usagef(cmd, "--minutes: %g is not above 0, up to 100000", minutes)
				}
				if !given("lives") {
					c.Lives = math.MaxInt
				}
				c.Duration = max(time.Second, time.Duration(minutes*float64(time.Minute)))
			}
			if !given("seed") {
				c.Seed = rand.Uint64N(1 << 40)
			}
			var err error
			if c.Kinds, err = chaos.ParseKinds(only); err != nil {
				return usagef(cmd, "--only: %w", err)
			}
			return liveChaos(cmd, c, out, asJSON)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&c.Seed, "seed", 0, "seed of the first life; the next ones have the next seeds (default: a random one)")
	f.IntVar(&c.Lives, "lives", c.Lives, "number of lives")
	f.Float64Var(&minutes, "minutes", 0, "begin no life after this time, without a limit of their number unless --lives is given (default: no limit of time)")
	f.IntVar(&c.Steps, "steps", c.Steps, "about how many steps a life has; there is a trouble for each 100 of them")
	f.StringSliceVar(&only, "only", nil, "kinds of trouble (default: all)")
	f.StringVar(&out, "out", "", "`file` for the trace: all that happens, and what the processes log (default: its end, if something goes wrong)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	choices(cmd, "only", chaos.Names()...)
	return cmd
}

// traceTail is how many of the last lines of a trace are shown.
const traceTail = 60

// liveChaos runs lives, and prints what became of them.
func liveChaos(cmd *cobra.Command, c chaos.Config, out string, asJSON bool) (err error) {
	var last []string
	c.Trace = func(line string) {
		if len(last) == traceTail {
			last = last[:copy(last, last[1:])]
		}
		last = append(last, line)
	}
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		lines := bufio.NewWriter(f)
		defer func() { err = errors.Join(err, lines.Flush(), f.Close(), file.Give(out)) }()
		c.Trace = func(line string) { fmt.Fprintln(lines, line) }
	}
	total, unit := int64(c.Lives)*int64(c.Steps), "steps"
	if c.Lives == math.MaxInt {
		total, unit = int64(c.Duration.Seconds()), "seconds"
	}
	progress := report.NewProgress(cmd.ErrOrStderr(), total, unit)
	c.Progress = func(n chaos.Now) {
		done := int64(n.Lives)*int64(n.Steps) + int64(min(n.Step, n.Steps))
		if c.Lives == math.MaxInt {
			done = int64(n.Elapsed.Seconds())
		}
		progress.Update(done, fmt.Sprintf("seed %d, step %d: %s", n.Seed, n.Step, n.Trouble))
	}
	r, failed := runChaos(cmd.Context(), c)
	progress.Finish()
	if failed != nil && (r == nil || r.Failure == "") {
		return misuse(cmd, failed)
	}
	w := cmd.OutOrStdout()
	if asJSON {
		return errors.Join(failed, report.WriteJSON(w, r))
	}
	if failed != nil {
		if err := printTail(w, last, out); err != nil {
			return err
		}
	}
	p := report.NewPrinter(w)
	r.Print(p)
	if failed != nil {
		life := r.Lives[len(r.Lives)-1]
		p.Line("Live it again: " + c.Replay(life.Seed))
	}
	p.Line(r.Verdict())
	return errors.Join(failed, p.Err())
}

// printTail shows the end of a trace, or where it is.
func printTail(w io.Writer, last []string, out string) error {
	if out != "" {
		_, err := fmt.Fprintf(w, "The trace is in %s.\n\n", out)
		return err
	}
	_, err := fmt.Fprintf(w, "The end of the trace (all of it: --out FILE):\n%s\n\n", strings.Join(last, "\n"))
	return err
}
