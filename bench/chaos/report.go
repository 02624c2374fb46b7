// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
)

// Report is the outcome of a run, and its JSON object.
type Report struct {
	Seed    uint64        `json:"seed"` // of the first life
	Elapsed time.Duration `json:"elapsed_ns"`
	Lives   []LifeReport  `json:"lives"`
	Failure string        `json:"failure,omitempty"` // of the last life
}

// LifeReport is what a life was like.
type LifeReport struct {
	Life
	Elapsed time.Duration `json:"elapsed_ns"`
	// Happened are the numbers of troubles by kind, and Skipped is the number of those that had no
	// target.
	Happened map[Kind]int `json:"happened"`
	Skipped  int          `json:"skipped"`
	Counts
	// Reference is the SHA-256 of the weights of the training in one process, and Weights that of the
	// server's.
	Reference string `json:"reference_sha256"`
	Weights   string `json:"weights_sha256"`
}

// Counts are what happened in a life.
type Counts struct {
	Steps   uint64 `json:"steps"`
	Kills   int    `json:"kills"`   // processes
	Fences  int    `json:"fences"`  // generations that ended because of their aggregator
	Rewinds int    `json:"rewinds"` // because of a worker
	// Of the processes' counters, which are read twice a second: the last ones before a kill may be
	// missing.
	Harvests        uint64 `json:"harvests"`
	Settled         uint64 `json:"settled_frames"`
	Duplicates      uint64 `json:"duplicates"` // frames that aggregators and server had applied before
	Retransmissions uint64 `json:"retransmissions"`
	// Frames that were lost, doubled and overtaken at the workers, since they have last joined.
	Dropped    uint64 `json:"dropped"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	// Copies that the network has made.
	LateCopies    int `json:"late_copies"`
	CorruptCopies int `json:"corrupt_copies"`
}

func (c *Counts) add(o Counts) {
	c.Steps += o.Steps
	c.Kills += o.Kills
	c.Fences += o.Fences
	c.Rewinds += o.Rewinds
	c.Harvests += o.Harvests
	c.Settled += o.Settled
	c.Duplicates += o.Duplicates
	c.Retransmissions += o.Retransmissions
	c.Dropped += o.Dropped
	c.Duplicated += o.Duplicated
	c.Reordered += o.Reordered
	c.LateCopies += o.LateCopies
	c.CorruptCopies += o.CorruptCopies
}

// Total sums the counts of all lives, and their troubles by kind.
func (r *Report) Total() (sum Counts, happened map[Kind]int, skipped int) {
	happened = map[Kind]int{}
	for _, l := range r.Lives {
		sum.add(l.Counts)
		skipped += l.Skipped
		for k, n := range l.Happened {
			happened[k] += n
		}
	}
	return sum, happened, skipped
}

// Verdict is the last line for people.
func (r *Report) Verdict() string {
	if r.Failure != "" {
		return fmt.Sprintf("seed %d: NOT as the reference: %s", r.Lives[len(r.Lives)-1].Seed, r.Failure)
	}
	if len(r.Lives) == 1 {
		return fmt.Sprintf("seed %d: bit-identical to the reference", r.Seed)
	}
	return fmt.Sprintf("%d lives, seeds %d to %d: all bit-identical to the reference", len(r.Lives), r.Seed,
		r.Lives[len(r.Lives)-1].Seed)
}

// Print writes the report for people, without the verdict. With a single life, it begins with the
// schedule.
func (r *Report) Print(out *report.Printer) {
	if len(r.Lives) == 1 {
		l := r.Lives[0]
		out.Table(fmt.Sprintf("Schedule of seed %d: %d workers, about %d steps", l.Seed, l.Workers, l.Steps),
			[]string{"step", "after", "trouble"}, scheduleRows(l.Troubles))
	}
	sum, happened, skipped := r.Total()
	rows := [][]any{{"loss", comma(sum.Dropped) + " frames"}, {"duplicate", comma(sum.Duplicated) + " frames"},
		{"reorder", comma(sum.Reordered) + " frames"}, {"late", comma(uint64(sum.LateCopies)) + " copies"},
		{"corrupt", comma(uint64(sum.CorruptCopies)) + " copies"}}
	for _, k := range kinds {
		if k.weight > 0 && happened[k.kind] > 0 {
			rows = append(rows, []any{string(k.kind), happened[k.kind]})
		}
	}
	rows = append(rows, []any{"without a target", skipped})
	out.Table(fmt.Sprintf("Troubles of %d lives, %v", len(r.Lives), r.Elapsed.Round(time.Second)),
		[]string{"kind", "times"}, rows)
	out.Table("What became of them", []string{"", ""}, [][]any{
		{"steps", comma(sum.Steps)}, {"processes killed", sum.Kills}, {"fences", sum.Fences}, {"rewinds", sum.Rewinds},
		{"harvests with sums", comma(sum.Harvests)}, {"hot frames settled", comma(sum.Settled)},
		{"duplicates refused", comma(sum.Duplicates)}, {"retransmissions", comma(sum.Retransmissions)},
	})
}

func scheduleRows(troubles []Trouble) [][]any {
	var rows [][]any
	for _, t := range troubles {
		rows = append(rows, []any{t.Step, t.After.Round(time.Millisecond).String(), t.String()})
	}
	return rows
}

func comma(n uint64) string { return humanize.Comma(int64(n)) }
