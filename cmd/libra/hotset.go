// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/sched"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

func newHotset() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hotset",
		Short: "Find, show and study hot parameters",
	}
	cmd.AddCommand(newHotsetBuild(), newHotsetLearn(), newHotsetShow(), newHotsetStudy())
	return cmd
}

func newHotsetBuild() *cobra.Command {
	var (
		file, out string
		keys      string
		asJSON    bool
		dim       int
		rows      string
		auto      heat.Auto
		model     = cluster.Model{Kind: settings.Model.Default}
		o         node.HotSetOptions
	)
	cmd := &cobra.Command{
		Use:   "build {--data | --keys} FILE --out FILE",
		Short: "Find the hot parameters of a training set by sampling its rows",
		Long: `Counts the parameters of a random part of the rows and writes the hottest, in
rank order, to a file that all processes of a cluster read. How many are hot
follows the paper's Principle 1 unless --hot-rows sets it. With --hot-rows auto,
for an aggregator in XDP, it is the number with which aggregator and server
together spend least CPU time, by what hot and cold rows and harvested sums cost,
and by the load that --workers, --push-rate, --push-rows and --harvest-period describe.
Without --rate, all rows are counted if the part has fewer parameters than --hot-rows,
or if auto takes some that it has only once.

With --keys the rows are pushes of a ps-lite program, of which the van has written some (variable
LIBRA_KEYS_OUT, docs/pslite.md): a file with the keys of a push in each line, or a folder with files
*.keys. All of them are counted.`,
		Example: `  libra hotset build --data train.libfm.gz --out hot.libra
  libra hotset build --data train.libfm.gz --out hot.libra --hot-rows auto --workers 8 --push-rate 500000
  libra hotset build --keys keys --out hot.libra --hot-rows 30000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file == "" && keys == "" || out == "":
				return usagef(cmd, "--data, or --keys, and --out are required")
			case file != "" && keys != "":
				return usagef(cmd, "--keys %s: the rows are those of --data: leave one of them out", keys)
			}
			if err := checkOutput(cmd, out, cmp.Or(file, keys)); err != nil { // now, and not when all rows are counted
				return err
			}
			if model.Kind == "lr" && model.Factors != 0 {
				return usagef(cmd, "--factors %d: model lr has none, so leave it out", model.Factors)
			}
			m, err := node.Model(model)
			if err != nil {
				return err
			}
			o.Dim = m.Dim()
			if flags := cmd.Flags(); flags.Changed("dim") || keys != "" {
				if flags.Changed("model") || flags.Changed("factors") {
					return usagef(cmd, "--dim is in place of --model and --factors, also of --keys: leave them out, or it")
				}
				if !flags.Changed("dim") {
					dim = 1
				}
				if most := train.MaxFactors + 1; dim < 1 || dim > most {
					return usagef(cmd, "--dim %d: it must be from 1 to %d", dim, most)
				}
				o.Dim, o.NoBias = dim, true
			}
			if err := hotRows(cmd, rows, &o, &auto); err != nil {
				return err
			}
			if o.Switches < 1 || o.Switches > sched.MaxSwitches {
				return usagef(cmd, "--switches %d: it must be 1 to %d", o.Switches, sched.MaxSwitches)
			}
			if most := packer.MaxHotRows(o.Dim); o.Rows > most {
				return usagef(cmd, "--hot-rows %d: a job has at most %d rows of %d scalars", o.Rows, most, o.Dim)
			}
			if o.Counters > 0 && o.Counters < o.Rows {
				return usagef(cmd, "--counters %d: they cannot find the %d rows of --hot-rows: give several times as many, or leave it out",
					o.Counters, o.Rows)
			}
			src, err := openHotSetRows(file, keys)
			if err != nil {
				return err
			}
			defer src.Close()
			if keys != "" {
				o.Rate = cmp.Or(o.Rate, 1) // the van has taken a sample
			}
			hot, err := node.BuildHotSet(src, o)
			if err != nil {
				return err
			}
			if err := packer.SaveHotSet(out, hot); err != nil {
				return err
			}
			why := "the data have no more keys"
			if hot.Meta().Rate < 1 {
				why = "the sample has no more keys: leave out --rate, so that all rows are counted"
			}
			sayFewer(cmd.ErrOrStderr(), hot, o.Rows, why)
			return printHotset(cmd.OutOrStdout(), hot, o.Expected, 0, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "data", "", "training `file` in libfm, libsvm or libffm format, plain or gzip, with any labels")
	f.StringVar(&keys, "keys", "", "`file` or folder with keys of pushes of ps-lite, in place of --data")
	f.StringVar(&out, "out", "", "hot-set `file` to write")
	f.StringVar(&model.Kind, "model", model.Kind, settings.Model.Help(""))
	f.IntVar(&model.Factors, "factors", 0, settings.Factors.Help(settings.Factors.Usual()))
	choices(cmd, "model", "fm", "lr")
	f.IntVar(&dim, "dim", 0, "floats of a row, in place of --model and --factors, as model.dim of the cluster file (with --keys: default 1)")
	f.Float64Var(&o.Rate, "rate", 0,
		fmt.Sprintf("share of the rows to sample (default %v, or 1 where that is too few for --hot-rows, or fewer than %d rows)",
			node.DefaultRate, node.EnoughRows))
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the row sampler")
	f.StringVar(&rows, "hot-rows", "", "`number` of hot rows, or auto: by cost (default: by Principle 1)")
	f.IntVar(&auto.Workers, "workers", 4, "auto: workers of the job")
	f.Float64Var(&auto.Rate, "push-rate", 1e6, "auto: rows that each worker pushes in a second")
	f.IntVar(&auto.Batch, "push-rows", 4096, "auto: rows of a push")
	f.BoolVar(&auto.Numbered, "numbered", false, "auto: pushes name the numbers of cold rows, as prepared batches do, and not their keys")
	f.BoolVar(&auto.Apart, "apart", false, "auto: aggregator and server have CPUs of their own, so that the busier one counts")
	f.DurationVar(&auto.Period, "harvest-period", 20*time.Millisecond, "auto: time between harvests")
	f.IntVar(&o.Switches, "switches", 1, "switches among which 'libra plan' divides the rows, each with room for 65536 scalars; a P4 switch has no more for a job")
	f.IntVar(&o.Counters, "counters", 0, "count at most this number of keys, by a sketch (default: all, exactly)")
	f.Float64Var(&o.Principle.Share, "p", 0, "Principle 1: share of the updates that the hot parameters must receive")
	f.Float64Var(&o.Principle.MemoryShare, "c", 0,
		fmt.Sprintf("Principle 1: share of a %d MiB chip to use (default %v)", heat.DefaultChipBytes>>20,
			heat.DefaultMemoryShare))
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// sayFewer says it if a hot set has fewer rows than --hot-rows asked for.
func sayFewer(w io.Writer, hot *packer.HotSet, asked int, why string) {
	if hot.Len() < asked {
		fmt.Fprintf(w, "only %d rows are hot, and not the %d of --hot-rows: %s\n", hot.Len(), asked, why)
	}
}

// openHotSetRows opens --data or --keys.
func openHotSetRows(file, keys string) (data.Source, error) {
	if keys != "" {
		return data.OpenKeys(keys)
	}
	return data.OpenFile(file, data.Regression, data.Shard{}) // with any labels
}

// hotRows reads --hot-rows.
func hotRows(cmd *cobra.Command, rows string, o *node.HotSetOptions, auto *heat.Auto) error {
	if rows == "auto" {
		for _, name := range []string{"p", "c", "switches"} {
			if cmd.Flags().Changed(name) {
				return usagef(cmd, "--%s is for Principle 1, and --hot-rows auto goes by cost: leave one of them out", name)
			}
		}
		switch {
		case auto.Workers < 1:
			return usagef(cmd, "--workers %d: it must be at least 1", auto.Workers)
		case !(auto.Rate > 0) || math.IsInf(auto.Rate, 0):
			return usagef(cmd, "--push-rate %v: it must be a number above 0", auto.Rate)
		case auto.Batch < 1:
			return usagef(cmd, "--push-rows %d: it must be at least 1", auto.Batch)
		case auto.Period <= 0:
			return usagef(cmd, "--harvest-period %v: it must be above 0", auto.Period)
		case auto.CheckLoad() != nil:
			return usagef(cmd, "--push-rate %v: it is too low or too high for %d workers and a harvest every %v: give what was measured",
				auto.Rate, auto.Workers, auto.Period)
		}
		o.Auto, o.Expected = auto, &heat.Expected{}
		return nil
	}
	for _, name := range []string{"workers", "push-rate", "push-rows", "harvest-period", "numbered", "apart"} {
		if cmd.Flags().Changed(name) {
			return usagef(cmd, "--%s is for --hot-rows auto: add that, or leave it out", name)
		}
	}
	if rows == "" {
		return nil
	}
	n, err := strconv.Atoi(rows)
	if err != nil || n < 0 {
		return usagef(cmd, "--hot-rows %s: it must be a number of rows, or auto", rows)
	}
	o.Rows = n
	return nil
}

func newHotsetShow() *cobra.Command {
	var (
		top    int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Show what a hot-set file holds",
		Args:  oneArg("hot-set file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			hot, err := packer.LoadHotSet(args[0])
			if err != nil {
				return err
			}
			return printHotset(cmd.OutOrStdout(), hot, nil, top, asJSON)
		},
	}
	cmd.Flags().IntVar(&top, "top", 10, "number of rows to list")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// HotRow is one row of a hot set, as 'libra hotset show' lists it.
type HotRow struct {
	Rank    uint32 `json:"rank"`
	Key     uint64 `json:"key"`
	Updates uint64 `json:"updates"`
}

// HotSet is the JSON object of 'libra hotset build' and 'libra hotset show'.
type HotSet struct {
	Rows        int      `json:"rows"`
	Dimension   int      `json:"dimension"` // scalars of a row
	Slots       int      `json:"slots"`
	Share       float64  `json:"share"` // of the updates in the sample
	Rate        float64  `json:"rate"`  // share of the rows in the sample
	Fingerprint string   `json:"fingerprint"`
	Top         []HotRow `json:"top,omitempty"` // the first rows, hottest first
	// Expected is what the choice by cost expects, with --hot-rows auto.
	Expected *heat.Expected `json:"expected,omitempty"`
}

// printHotset describes a hot set and lists its first rows.
func printHotset(w io.Writer, hot *packer.HotSet, e *heat.Expected, top int, asJSON bool) error {
	meta := hot.Meta()
	var rows []HotRow
	for r := range uint32(min(top, hot.Len())) {
		rows = append(rows, HotRow{r, hot.Key(r), hot.Count(r)})
	}
	if asJSON {
		return report.WriteJSON(w, HotSet{hot.Len(), hot.Dim(), hot.Slots(), meta.Share(), meta.Rate,
			hot.Fingerprint().String(), rows, e})
	}
	fmt.Fprintf(w, "%d hot rows of %d scalars (%d slots) take %.1f %% of the updates in a sample of %.3g %% of the rows\nfingerprint %v\n",
		hot.Len(), hot.Dim(), hot.Slots(), 100*meta.Share(), 100*meta.Rate, hot.Fingerprint())
	if e != nil {
		fmt.Fprintf(w, "expected: %.1f ns of CPU at aggregator and server for an update, and %s sums in a harvest; a server alone takes %.1f ns\n",
			e.Both, humanize.Comma(int64(math.Round(e.Sums))), e.Server)
	}
	if len(rows) == 0 {
		return nil
	}
	var cells [][]any
	for _, r := range rows {
		cells = append(cells, []any{r.Rank, r.Key, r.Updates})
	}
	return report.Table(w, []string{"rank", "key", "updates"}, cells)
}
