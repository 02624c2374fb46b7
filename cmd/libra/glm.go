// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train/glm"
	"github.com/libra-ina/libra/train/settings"
	"github.com/libra-ina/libra/train/weights"
)

// GLMLine is a line of 'libra glm --json', with one of its members. With --config there are the
// first three, without it there is only the last.
type GLMLine struct {
	Ready    *int            `json:"ready,omitempty"`    // process ID, once all workers have joined
	Progress *glm.Progress   `json:"progress,omitempty"` // from time to time
	Result   *node.GLMResult `json:"result,omitempty"`   // of the worker, at the end
	Summary  *demo.GLMResult `json:"summary,omitempty"`  // of all workers, at the end
}

func newGLM() *cobra.Command {
	var (
		p         process
		id        uint16
		objective = glm.Logistic.String()
		g         = demo.GLM{Training: glm.Defaults(), Workers: 4, Backend: cluster.BackendAFXDP}
	)
	g.Training.Seed = 1
	cmd := &cobra.Command{
		Use:   "glm",
		Short: "Train a linear model whose columns are divided among workers",
		Long: `Trains logistic or linear regression, or a linear support vector machine, model-parallel:
each worker holds a part of the columns, their weights, and all labels. Workers add their
partial activations in the network, a micro-batch at a time, and compute the next while
the sums of earlier ones are on their way (Algorithm 1 of the P4SGD paper). All arithmetic
that this divides is of integers: the weights are the same bits for any number of workers,
any micro-batch and any network.

Like 'libra demo' it creates a network of namespaces with a switch in the middle, and
leaves nothing behind. With --config and --id it is instead one worker of a cluster, whose
file needs no server: start 'libra switch' first, and then all workers with the same flags
and copies of the same data. docs/glm.md has the details.

` + fmt.Sprintf("Without --data it trains on a synthetic click log of %d rows.", node.DefaultGLMRows),
		Example: `  libra glm
  libra glm --backend udp --data train.libfm.gz --learning-rate 2 --epochs 3 --out weights.csv
  libra evaluate --weights weights.csv --data test.libfm.gz
  libra glm --data train.libsvm --objective hinge --bits 8 --loss 0.01
  libra glm --config cluster.yaml --id 2 --data train.libsvm`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if g.Training.Objective, err = glm.ParseObjective(objective); err != nil {
				return usagef(cmd, "--%w", err)
			}
			if err := checkGLMFlags(cmd, p.config, id); err != nil {
				return err
			}
			if g.Faults.Any() {
				g.Faults.Seed = g.Training.Seed
			}
			if err := g.Validate(); err != nil {
				return usagef(cmd, "%w", err)
			}
			if err := prepareGLMOut(cmd, &g); err != nil {
				return err
			}
			if p.config != "" {
				return runGLMWorker(cmd, &p, id, g)
			}
			g.Stderr, g.Log = cmd.ErrOrStderr(), slog.Default()
			if verbose, _ := cmd.Flags().GetBool("verbose"); verbose {
				g.Logs = g.Stderr
			}
			result, err := demo.RunGLM(cmd.Context(), g)
			if err != nil {
				return err
			}
			if p.json {
				return report.WriteJSON(cmd.OutOrStdout(), GLMLine{Summary: result})
			}
			return printGLM(cmd.OutOrStdout(), result)
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.Data, "data", "",
		"training `file` in libfm, libsvm or libffm format, plain or gzip (default: synthetic rows)")
	f.IntVar(&g.Rows, "rows", 0, fmt.Sprintf("rows of the synthetic log (default %d)", node.DefaultGLMRows))
	f.StringVar(&objective, "objective", objective,
		"what to minimise: logistic (log-loss) or hinge, of labels 1 and 0 or -1, or square (half the squared error)")
	f.IntVar(&g.Training.Bits, "bits", g.Training.Bits, "bits of a feature's magnitude, 1 to 8")
	f.IntVar(&g.Training.Batch, "batch", g.Training.Batch,
		settings.Batch.Help("")+", up to 1024: a multiple of --micro-batch")
	f.IntVar(&g.Training.MicroBatch, "micro-batch", g.Training.MicroBatch,
		"rows whose activations are added at once, 1 to 220; it does not change the weights")
	f.IntVar(&g.Training.Epochs, "epochs", g.Training.Epochs, "passes over the data")
	f.Float64Var(&g.Training.LearningRate, "learning-rate", g.Training.LearningRate,
		"learning rate, for features divided by the largest of their column")
	f.Uint64Var(&g.Training.Seed, "seed", g.Training.Seed, "seed of the order of rows, of synthetic rows and of faults")
	f.StringVar(&g.Out, "out", "", "`file` of the weights, for 'libra evaluate' and others; with --config the worker with the lowest number writes it (default: none)")
	f.StringVar(&g.Format, "format", "", "csv, npz, libfm or xlearn (default: the extension of --out)")
	f.IntVar(&g.Workers, "workers", g.Workers, "number of workers")
	f.StringVar(&g.Backend, "backend", g.Backend, "afxdp (needs root) or udp")
	f.BoolVar(&g.Acked, "acked", false,
		"use mode acked: the switch keeps half as much of each operation, which takes a second round trip")
	f.Float64Var(&g.Faults.Loss, "loss", 0, "probability that a frame is lost")
	f.Float64Var(&g.Faults.Duplicate, "duplicate", 0, "probability that a frame arrives twice")
	f.Float64Var(&g.Faults.Reorder, "reorder", 0, "probability that later frames overtake a frame")
	f.StringVar(&g.Capture, "capture", "", "`folder` for pcapng files of all frames that workers send and receive")
	f.StringVar(&p.config, "config", "",
		"cluster configuration `file`: be one worker of this cluster (default: a cluster on this machine)")
	f.Uint16Var(&id, "id", 0, "number of the worker in the configuration (required with --config)")
	f.BoolVar(&p.json, "json", false,
		"print one JSON object as the last line of standard output; with --config, JSON lines: when ready, progress, the result")
	choices(cmd, "objective", glm.Objectives()...)
	choices(cmd, "format", weights.Formats()...)
	choices(cmd, "backend", cluster.BackendAFXDP, cluster.BackendUDP)
	return cmd
}

// ofCluster are the flags for which a cluster file has fields.
var ofCluster = []string{"workers", "backend", "loss", "duplicate", "reorder", "capture"}

// checkGLMFlags refuses flags that do not go together.
func checkGLMFlags(cmd *cobra.Command, config string, id uint16) error {
	switch {
	case config == "" && id != 0:
		return usagef(cmd, "--id %d: it is a worker's number in a cluster configuration: give --config too", id)
	case config == "":
		return nil
	case id == 0:
		return usagef(cmd, "--id is required with --config: the worker's number in the configuration")
	}
	for _, name := range ofCluster {
		if cmd.Flags().Changed(name) {
			return usagef(cmd, "--%s: with --config it is the configuration that says so: leave it out", name)
		}
	}
	return nil
}

// prepareGLMOut finds the format of the weights, and refuses a file that cannot be written before
// the training.
func prepareGLMOut(cmd *cobra.Command, g *demo.GLM) error {
	switch {
	case g.Out == "" && g.Format != "":
		return usagef(cmd, "--format %s: of the file of the weights: give --out too", g.Format)
	case g.Out == "":
		return nil
	case g.Format == "":
		if g.Format = weights.FormatOf(g.Out); g.Format == "" {
			return usagef(cmd, "--out %s: its name ends with no format: give --format: %s", g.Out,
				strings.Join(weights.Formats(), ", "))
		}
	}
	if g.Data != "" {
		return checkOutput(cmd, g.Out, g.Data)
	}
	return checkOutput(cmd, g.Out)
}

// runGLMWorker is one worker of a cluster.
func runGLMWorker(cmd *cobra.Command, p *process, id uint16, g demo.GLM) error {
	env, err := p.readEnv(cmd, cluster.ReadAny)
	if err != nil {
		return err
	}
	every := everyPeriod(p.json)
	result, err := node.RunGLM(cmd.Context(), env, node.GLMOptions{
		ID: id, Training: g.Training, Acked: g.Acked, Data: g.Data, Rows: g.Rows, Out: g.Out,
		Format: g.Format,
		Progress: func(now glm.Progress) {
			switch {
			case !every():
			case !p.json:
				slog.Info("training", "epoch", now.Epoch+1, "samples", now.Samples, "of", now.Total, "loss", now.Loss)
			default:
				if err := p.printLine(GLMLine{Progress: &now}); err != nil {
					slog.Warn("cannot report progress", "error", err)
				}
			}
		},
	})
	switch {
	case err != nil:
		return err
	case p.json:
		return p.printLine(GLMLine{Result: result})
	}
	fmt.Fprintf(p.out, "%d rows, %d columns in %v, loss %.4f; %d all-reduces, %d frames sent again\n", result.Rows,
		result.Columns, result.Elapsed.Round(time.Millisecond), result.Epochs[len(result.Epochs)-1].Loss, result.Operations,
		result.Repeated)
	if m := result.Model; m != nil {
		fmt.Fprintf(p.out, "SHA-256 of the weights of all %d columns: %s\n", m.Columns, m.WeightsSHA256)
	}
	return nil
}

// printGLM prints the outcome as one table.
func printGLM(w io.Writer, r *demo.GLMResult) error {
	mode := aggregator.Sync
	if r.Acked {
		mode = aggregator.Acked
	}
	rows := [][]any{
		{"data", r.Data},
		{"rows", humanize.Comma(int64(r.Rows))},
		{"columns", humanize.Comma(int64(r.Columns))},
		{"objective", r.Objective},
		{"bits of a feature", r.Bits},
		{"mini-batch, micro-batch", fmt.Sprintf("%d, %d", r.Batch, r.MicroBatch)},
		{"backend", r.Backend},
		{"mode", mode},
		{"workers", r.Workers},
		{"epochs", len(r.Epochs)},
		{"loss, first epoch", fmt.Sprintf("%.4f", r.Epochs[0].Loss)},
		{"loss, last epoch", fmt.Sprintf("%.4f", r.Epochs[len(r.Epochs)-1].Loss)},
		{"training time", time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond).String()},
		{"samples/s", humanize.SIWithDigits(r.SamplesPerSecond, 1, "")},
		{"all-reduces", humanize.Comma(int64(r.Operations))},
		{"all-reduces/s", humanize.SIWithDigits(r.OperationsPerSecond, 1, "")},
		{"frames sent again", humanize.Comma(int64(r.Repeated))},
	}
	if r.FaultsDropped+r.FaultsDuplicated+r.FaultsReordered > 0 {
		rows = append(rows, []any{"faults injected", fmt.Sprintf("%s lost, %s doubled, %s overtaken",
			humanize.Comma(int64(r.FaultsDropped)), humanize.Comma(int64(r.FaultsDuplicated)),
			humanize.Comma(int64(r.FaultsReordered)))})
	}
	rows = append(rows, []any{"SHA-256 of the weights", r.WeightsSHA256})
	return report.Table(w, []string{"", ""}, rows)
}
