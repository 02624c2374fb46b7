// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/study/lossy"
)

func newCodec() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "codec",
		Short: "Study the codec for gradients",
	}
	cmd.AddCommand(newCodecStudy())
	return cmd
}

func newCodecStudy() *cobra.Command {
	var (
		c       = lossy.Defaults()
		schemes = lossy.Schemes()[1:]
		out     results
	)
	cmd := &cobra.Command{
		Use:   "study",
		Short: "Train on images with shortened gradients, next to the INCEPTIONN paper's figures",
		Long: `Trains the paper's network for handwritten digits with gradients that workers exchange in
several ways, and prints accuracy and bytes: as float32, in codes of package codec with error
feedback and without, in the paper's codes as they are printed, with 16, 22 and 24 bits cut
(Figures 4 and 14), in 8 bits, and as the largest hundredth of the values. It also prints how
long the codes of gradients are (Table III). The workers and their ring are simulated in one
process, and nothing is timed: the same seed gives the same figures. An epoch of a scheme takes
about five seconds on two CPUs.`,
		Example: `  libra codec study --images t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz
  libra codec study --images images.gz --labels labels.gz --scheme 2^-10,2^-6 --epochs 20 --seeds 5 --out plots`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Images == "" || c.Labels == "" {
				return usagef(cmd, "give the images and their labels: --images and --labels; MNIST's are IDX files")
			}
			return measure(cmd, &out, "epochs", func(p experiment.Progress) (*lossy.Report, error) {
				c.Progress, c.Schemes = p, besides(lossy.Lossless, schemes)
				return lossy.Run(cmd.Context(), c)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Images, "images", "", "IDX `file` of images of 28 × 28 bytes, plain or compressed by gzip")
	f.StringVar(&c.Labels, "labels", "", "IDX `file` of their labels, 0 to 9")
	f.IntVar(&c.Train, "train", c.Train, "images to train on, the first")
	f.IntVar(&c.Test, "test", c.Test, "images after them, to test with")
	f.StringSliceVar(&schemes, "scheme", schemes, "what to train with, beside "+lossy.Lossless)
	choices(cmd, "scheme", schemes...)
	f.IntVar(&c.Epochs, "epochs", c.Epochs, "epochs of each training")
	f.IntVar(&c.Seeds, "seeds", c.Seeds, "trainings with each scheme")
	f.IntVar(&c.Workers, "workers", c.Workers, "workers in the ring")
	f.IntVar(&c.Batch, "batch", c.Batch, "images of a worker's step")
	f.Float64Var(&c.Rate, "rate", c.Rate, "learning rate")
	f.Float64Var(&c.Momentum, "momentum", c.Momentum, "momentum of the optimiser")
	f.Float64Var(&c.Decay, "decay", c.Decay, "share of the weights that is added to gradients")
	out.addFlags(cmd)
	out.targetFlag(cmd)
	return cmd
}
