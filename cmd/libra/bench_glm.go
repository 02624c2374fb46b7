// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/glm"
	"github.com/libra-ina/libra/internal/report/experiment"
)

func newBenchGLM() *cobra.Command {
	var (
		c         = glm.Defaults()
		baselines = glm.Baselines()
		out       results
		shapes    []string
	)
	for _, s := range glm.Shapes() {
		shapes = append(shapes, s.Name)
	}
	cmd := &cobra.Command{
		Use:   "glm",
		Short: "Measure linear models divided by columns against copies of the model",
		Long: `Trains logistic regression on made-up rows in the shape of known data sets, on a
network of namespaces with the XDP aggregator: with the columns divided among workers, as
'libra glm' does, and alternately with the rows divided, adding whole gradients by
whole-vector reduces, and those of the features that occur by 'libra demo --sync'. It
compares losses with SGD in float32, and computes from measured parts how epochs would
scale if each worker had a CPU of its own. It needs root.`,
		Example: `  libra bench glm --out plots --targets
  libra bench glm --shapes gisette,avazu --batches 64 --baseline none`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return measure(cmd, &out, "measurements", func(p experiment.Progress) (*glm.Report, error) {
				c.Progress, c.Baselines = p, besides(glm.Libra, baselines)
				return runBenchGLM(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&c.Shapes, "shapes", c.Shapes, "data sets whose shape the rows have: of "+strings.Join(shapes, ", "))
	f.IntSliceVar(&c.Batches, "batches", c.Batches, "sizes of mini-batches, of all workers together")
	f.IntVar(&c.Workers, "workers", c.Workers, "workers of the comparison")
	f.IntVar(&c.Rows, "rows", c.Rows, "rows that are trained of each shape, at most those of its data set")
	f.IntVar(&c.Epochs, "epochs", c.Epochs, "passes over the rows")
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "interleaved rounds")
	f.IntSliceVar(&c.Scale, "scale", c.Scale, "numbers of workers for which epochs are computed")
	f.IntVar(&c.Operations, "operations", c.Operations, "all-reduces of one measurement")
	baselineFlag(cmd, &baselines)
	out.addFlags(cmd)
	out.targetFlag(cmd)
	cmd.AddCommand(newChild(glmChild))
	return cmd
}
