// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

func newDemo() *cobra.Command {
	var (
		asJSON    bool
		hotRows   string
		baselines []string
	)
	o := demo.Options{
		Model: settings.Model.Default, Task: settings.Task.Default, Workers: 4, Backend: cluster.BackendAFXDP,
		Arithmetic: settings.Arithmetic.Default, Optimizer: settings.Optimizer.Default, Seed: 1,
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train a sparse model on this machine, with aggregation in the network",
		Long: `Creates a network of namespaces with a switch in the middle, attaches the XDP
aggregator to the switch, starts a parameter server and workers on the hosts, and
trains a model asynchronously. Then it trains the same model in one process and
compares. It leaves nothing behind when it ends.

With --sync all workers take each step together, and with exact arithmetic the
weights equal those of one process bit for bit, whatever --loss, --duplicate and --reorder
do to the frames.

With --plane p4 the switch is bmv2, which runs the P4 program at a few thousand frames
per second: give it a small --data file.

The baseline is the same training in one process, and with --baseline
one-process,server-only also the same cluster without the switch, whose server gets
all gradients itself. On one machine, whose CPUs all of them share, one process is the
fastest: the switch pays if it relieves a server on its own machine (docs/performance.md).

` + fmt.Sprintf(`Without --data it trains on a synthetic click log whose hottest %d parameters
take %g %% of the updates.`, demo.HotScalars, 100*demo.SyntheticShare),
		Example: `  libra demo
  libra demo --data train.libfm.gz --test test.libfm.gz --sync --loss 0.01
  libra demo --data train.libfm.gz --sync --servers 3
  libra demo --plane p4 --data small.libfm --sync --epochs 1
  libra demo --backend udp      # needs no privileges`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Baselines = baselines; slices.Equal(baselines, []string{noBaseline}) {
				o.Baselines = nil
			}
			if o.AutoHot = hotRows == "auto"; hotRows != "" && !o.AutoHot {
				n, err := strconv.Atoi(hotRows)
				if err != nil {
					return usagef(cmd, "--hot-rows %s: it must be a number of rows, or auto", hotRows)
				}
				o.HotRows = n
			}
			if err := errors.Join(checkCodingFlags(cmd), o.Validate()); err != nil {
				return usagef(cmd, "%w", err)
			}
			leave, err := makeOut(o.Out, 0o777)
			if err != nil {
				return err
			}
			defer leave()
			o.Stderr, o.Log = cmd.ErrOrStderr(), slog.Default()
			if verbose, _ := cmd.Flags().GetBool("verbose"); verbose {
				o.Logs = o.Stderr
			}
			result, err := demo.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if o.Out != "" {
				if _, err := chart.Write(o.Out, learningCurves(result)); err != nil {
					return err
				}
			}
			if asJSON {
				err = report.WriteJSON(cmd.OutOrStdout(), result)
			} else {
				err = printDemo(cmd.OutOrStdout(), result)
			}
			if result.ReferenceSHA256 != "" && result.WeightsSHA256 != result.ReferenceSHA256 {
				err = errors.Join(err, errors.New("the weights differ from those of the same training in one process"))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "",
		"training `file` in libfm, libsvm or libffm format, plain or gzip (default: synthetic rows)")
	f.StringVar(&o.Test, "test", "", "`file` of held-out rows (default with --data: the training rows)")
	f.IntVar(&o.Window, "window", 0, settings.Window.Help("")+" (default: all of its rows)")
	f.IntVar(&o.Rows, "rows", 0, fmt.Sprintf("rows of the synthetic log (default %d: one to two minutes of training)",
		demo.SyntheticRows))
	f.StringVar(&o.Model, "model", o.Model, settings.Model.Help(""))
	f.StringVar(&o.Task, "task", o.Task, settings.Task.Help(""))
	f.IntVar(&o.Workers, "workers", o.Workers, "number of workers")
	f.IntVar(&o.Servers, "servers", 1, "number of parameter servers, each with a part of the rows")
	f.IntVar(&o.Shares, "shares", 1, "number of jobs at the switch among which the hot set is divided")
	f.IntVar(&o.Switches, "switches", 1, "number of switches among which a plan divides the hot set")
	f.BoolVar(&o.Tree, "tree", false, "let the first of several switches harvest the others, in the place of the server")
	f.IntVar(&o.Epochs, "epochs", 0, byData(settings.Epochs))
	f.BoolVar(&o.Sync, "sync", false, settings.Sync.Help(""))
	f.StringVar(&o.Arithmetic, "arithmetic", o.Arithmetic, settings.Arithmetic.Help(""))
	f.DurationVar(&o.Harvest, "harvest", 0, settings.Harvest.Help(settings.Harvest.Usual()))
	f.IntVar(&o.Staleness, "staleness", 0, byLength(settings.Staleness))
	f.IntVar(&o.Accumulate, "accumulate", 0, byLength(settings.Accumulate))
	f.StringVar(&o.Backend, "backend", o.Backend, "afxdp (needs root) or udp")
	f.StringVar(&o.Plane, "plane", "",
		"p4 for a P4 switch, bmv2's simple_switch_grpc (default: the backend's own data plane)")
	f.BoolVar(&o.LaneAligned, "lane-aligned", false,
		"send frames that a P4 switch accepts: one stripe, each pair in its register's lane")
	f.IntVar(&o.Batch, "batch", 0, byData(settings.Batch))
	f.IntVar(&o.Factors, "factors", 0, byData(settings.Factors))
	f.StringVar(&hotRows, "hot-rows", "", fmt.Sprintf("`number` of hot rows, or auto: by cost (default: %d scalars')", demo.HotScalars))
	f.Float64Var(&o.HotRate, "hot-rate", 0, fmt.Sprintf("share of the rows to sample for the hot set (default %g, or 1 where that is fewer than %d rows, or fewer keys than --hot-rows)",
		node.DefaultRate, node.EnoughRows))
	f.StringVar(&o.Optimizer, "optimizer", o.Optimizer, settings.Optimizer.Help("")+": adagrad or sgd")
	f.Float64Var(&o.LearningRate, "learning-rate", 0, settings.LearningRate.Help(settings.LearningRate.Usual()))
	f.Float64Var(&o.InitialAccumulator, "initial-accumulator", 0, byData(settings.InitialAccumulator))
	f.Float64Var(&o.InitScale, "init-scale", 0, byData(settings.InitScale))
	f.Float64Var(&o.Faults.Loss, "loss", 0, "probability that a frame is lost")
	f.Float64Var(&o.Faults.Duplicate, "duplicate", 0, "probability that a frame arrives twice")
	f.Float64Var(&o.Faults.Reorder, "reorder", 0, "probability that later frames overtake a frame")
	addCoding(f, &o.Coding)
	f.StringVar(&o.Capture, "capture", "",
		"`folder` for pcapng files of all frames that workers and server send and receive")
	f.StringSliceVar(&baselines, "baseline", []string{demo.OneProcess},
		"what to compare with: one-process, server-only, or none")
	f.StringVar(&o.Out, "out", "", "`folder` for results: weights.libra (the checkpoint), hot.libra, result.json, and with one server learning curves as SVG (default: nothing)")
	f.Uint64Var(&o.Seed, "seed", o.Seed, settings.Seed.Help("")+", of synthetic rows and of faults")
	f.BoolVar(&asJSON, "json", false, "print one JSON object as the last line of standard output")
	choices(cmd, "model", "fm", "lr")
	choices(cmd, "task", data.Tasks()...)
	choices(cmd, "arithmetic", demo.Arithmetics()...)
	choices(cmd, "backend", cluster.BackendAFXDP, cluster.BackendUDP)
	choices(cmd, "plane", cluster.PlaneP4)
	choices(cmd, "optimizer", "adagrad", "sgd")
	choices(cmd, "baseline", append(demo.Baselines(), noBaseline)...)
	return cmd
}

// addCoding adds the flags of how cold gradients are coded.
func addCoding(f *pflag.FlagSet, c *demo.Coding) {
	f.IntVar(&c.CodecBound, "codec-bound", 0,
		"send cold gradients in codes that differ by less than 2^-(bound + scale), 1 to 14 (default: as floats)")
	f.IntVar(&c.CodecScale, "codec-scale", 0, "cold gradients from 2^-scale on take four bytes, -126 to 126")
}

// checkCodingFlags refuses a bound of 0, which a cluster file may not have either: among options it
// is none.
func checkCodingFlags(cmd *cobra.Command) error {
	if f := cmd.Flags().Lookup("codec-bound"); f.Changed && f.Value.String() == "0" {
		return demo.BoundError(0)
	}
	return nil
}

// byData is the help of a flag whose default depends on where the rows come from.
func byData[T int | float64](f settings.Field[T]) string {
	if f.SmallData() == f.ClickLog() {
		return f.Help(f.Usual())
	}
	return f.Help(fmt.Sprintf("%v with --data, %v without", f.SmallData(), f.ClickLog()))
}

// byLength is the help of a flag whose default depends on the length of the synthetic log.
func byLength(f settings.Field[int]) string {
	return f.Help(fmt.Sprintf("%d; %d for synthetic logs of %d rows or more", f.SmallData(), f.ClickLog(), demo.LongLog))
}

// learningCurves shows how well the weights predict held-out rows after each epoch.
func learningCurves(r *demo.Result) []chart.Chart {
	var charts []chart.Chart
	for i, metric := range r.All() {
		c := chart.Chart{Name: strings.ReplaceAll(metric.Key, "_", "-"), Title: strings.ToUpper(metric.Name[:1]) +
			metric.Name[1:] + " of held-out rows", Legend: chart.TopRight}
		if metric.Key == "auc" { // which rises
			c.Legend = chart.BottomRight
		}
		c.X, c.Y.Label = chart.Axis{Label: "epoch"}, c.Title
		var all []float64
		add := func(name string, colour int, evaluations []node.Evaluation) {
			if len(evaluations) == 0 {
				return
			}
			s := chart.Series{Name: name, Colour: colour}
			for _, e := range evaluations {
				value := e.All()[i].Value
				s.Points = append(s.Points, chart.Point{X: float64(e.Epoch), Y: value})
				all = append(all, value)
			}
			c.Series = append(c.Series, s)
		}
		add(fmt.Sprintf("%d workers", r.Workers), 0, r.Evaluations)
		if r.OneProcess != nil {
			add("one process", 1, r.OneProcess.Evaluations)
		}
		if r.ServerOnly != nil {
			add("without the switch", 2, r.ServerOnly.Evaluations)
		}
		if len(all) > 0 {
			room := max(0.1*(slices.Max(all)-slices.Min(all)), 1e-4)
			c.Y.Min, c.Y.Max = slices.Min(all)-room, slices.Max(all)+room
		}
		charts = append(charts, c)
	}
	return charts
}

// coldBytes formats the bytes of cold gradients on the wire, and their share of what floats would
// take.
func coldBytes(r *demo.Result) string {
	if r.CodecBound == 0 {
		return humanize.Comma(int64(r.ColdBytes))
	}
	return fmt.Sprintf("%s, %.1f %% of what floats take", humanize.Comma(int64(r.ColdBytes)),
		100*float64(r.ColdBytes)/float64(int64(r.ColdBytes)+r.SavedBytes))
}

// printDemo prints the outcome as one table, and what it shows in one sentence.
func printDemo(w io.Writer, r *demo.Result) error {
	// compared shows a value beside those of the baselines.
	compared := func(name string, value func(*demo.Outcome) string) []any {
		var others []string
		for _, b := range []struct {
			name string
			*demo.Outcome
		}{{"one process", r.OneProcess}, {"without the switch", r.ServerOnly}} {
			if b.Outcome == nil {
				continue
			}
			if text := value(b.Outcome); text != "" {
				others = append(others, b.name+": "+text)
			}
		}
		text := value(&r.Outcome)
		if len(others) > 0 {
			text += " (" + strings.Join(others, "; ") + ")"
		}
		return []any{name, text}
	}
	rows := [][]any{
		{"data", r.Data},
		{"model", r.Model},
		{"task", r.Task},
		{"backend", r.Backend},
		{"data plane", r.Plane},
		{"arithmetic", r.Arithmetic},
		{"workers", r.Workers},
		{"servers", r.Servers},
		{"shares of the hot set", r.Shares},
		{"switches", r.Switches},
		{"epochs", r.Epochs},
	}
	for i, metric := range r.All() {
		rows = append(rows, compared(metric.Name+", held-out rows", func(o *demo.Outcome) string {
			return fmt.Sprintf("%.4f", o.All()[i].Value)
		}))
	}
	rows = append(rows, [][]any{
		compared("training time", func(o *demo.Outcome) string {
			return time.Duration(o.Seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
		}),
		compared("samples/s", func(o *demo.Outcome) string { return humanize.SIWithDigits(o.SamplesPerSecond, 1, "") }),
		{"pairs/s", humanize.SIWithDigits(r.PairsPerSecond, 2, "")},
		{"frames/s", humanize.SIWithDigits(r.FramesPerSecond, 1, "")},
		{"pairs that workers added up before", fmt.Sprintf("%.1f %%",
			100*float64(r.AddedPairs)/float64(r.AddedPairs+r.Pairs))},
		{"pairs summed in the network", fmt.Sprintf("%.1f %%", 100*r.HotShare)},
		{"cold bytes", coldBytes(r)},
		{"retransmissions", humanize.Comma(int64(r.Retransmissions))},
		{"frames saved at the server", humanize.Comma(r.FramesSaved)},
		compared("frames of gradients at the server", func(o *demo.Outcome) string {
			if o.GradientFrames == 0 {
				return "" // one process has no server
			}
			return humanize.Comma(int64(o.GradientFrames))
		}),
		compared("bytes of these", func(o *demo.Outcome) string {
			if o.GradientBytes == 0 {
				return ""
			}
			return humanize.Bytes(o.GradientBytes)
		}),
		compared("CPU time of the server", func(o *demo.Outcome) string {
			if o.ServerCPUSeconds == 0 {
				return ""
			}
			return fmt.Sprintf("%.1f s", o.ServerCPUSeconds)
		}),
	}...)
	if r.FaultsDropped+r.FaultsDuplicated+r.FaultsReordered > 0 {
		rows = append(rows, []any{"faults injected", fmt.Sprintf("%s lost, %s doubled, %s overtaken",
			humanize.Comma(int64(r.FaultsDropped)), humanize.Comma(int64(r.FaultsDuplicated)),
			humanize.Comma(int64(r.FaultsReordered)))})
	}
	if r.ReferenceSHA256 != "" {
		verdict := "equal to those of one process, bit for bit"
		if r.WeightsSHA256 != r.ReferenceSHA256 {
			verdict = "DIFFER from those of one process"
		}
		rows = append(rows, []any{"weights", verdict}, []any{"SHA-256 of the weights", r.WeightsSHA256})
	}
	return report.Table(w, []string{"", ""}, rows)
}
