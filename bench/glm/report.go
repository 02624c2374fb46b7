// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Sample is one measurement.
type Sample struct {
	// Epoch is the mean time of an epoch of the rows that are trained.
	Epoch float64 `json:"epoch_s"`
}

// Result is what was measured of one way to train.
type Result struct {
	Shape  string `json:"shape"`
	Batch  int    `json:"batch"`
	Method string `json:"method"`
	Sample        // median over the rounds
	// Whole is the time for all rows of the data set, computed from Epoch.
	Whole float64 `json:"whole_epoch_s"`
	// Ratio is the median over the rounds of libra's time divided by this one's; 0 without libra.
	Ratio   float64  `json:"ratio"`
	Samples []Sample `json:"samples"`
	// Curve is the loss in the first round, with its times; none with sparse.
	Curve []Point `json:"curve,omitempty"`
}

// Point is the end of an epoch.
type Point struct {
	Seconds float64 `json:"time_s"` // since the start of the training
	Loss    float64 `json:"loss"`   // mean of the epoch's rows, each before its update
}

// Losses are those of all epochs, with features of some bits.
type Losses struct {
	Shape  string    `json:"shape"`
	Bits   int       `json:"bits"` // 0: float32
	Losses []float64 `json:"losses"`
	// Off is the largest difference of an epoch's from that of float32, divided by that.
	Off float64 `json:"off"`
}

// features says in what features are.
func (l *Losses) features() string {
	if l.Bits == 0 {
		return "float32"
	}
	return english.Plural(l.Bits, "bit", "")
}

// Parts are the measured times of Equation 3 that a worker computes for a mini-batch.
type Parts struct {
	Forward  float64 `json:"forward_s"`
	Backward float64 `json:"backward_s"` // with the update
}

// Scaled is an epoch as Equation 3 of the P4SGD paper estimates it, if each worker has a CPU of its
// own.
type Scaled struct {
	Shape   string `json:"shape"`
	Batch   int    `json:"batch"`
	Workers int    `json:"workers"`
	// Network is what adds the activations: a baseline of 'libra bench allreduce'.
	Network string `json:"network"`
	Parts
	Latency float64 `json:"latency_s"` // measured median of an all-reduce
	// Whole is the computed time for all rows of the data set.
	Whole float64 `json:"whole_epoch_s"`
	// Speedup is that of one worker with libra divided by Whole; 0 if that was not computed.
	Speedup float64 `json:"speedup"`
}

// Report is what was measured. It marshals to one JSON object.
type Report struct {
	CPUs        int                      `json:"cpus"`
	Workers     int                      `json:"workers"`
	Rows        int                      `json:"rows"` // at most, of each shape
	Epochs      int                      `json:"epochs"`
	Rounds      int                      `json:"rounds"`
	Results     []Result                 `json:"results"`
	Losses      []Losses                 `json:"losses"`
	Scaled      []Scaled                 `json:"computed_scale"`
	Targets     []experiment.Target      `json:"targets,omitempty"`
	Unavailable []experiment.Unavailable `json:"unavailable,omitempty"`
}

func (r *Report) find(shape string, batch int, method string) *Result {
	return experiment.Find(r.Results, func(res Result) bool {
		return res.Shape == shape && res.Batch == batch && res.Method == method
	})
}

// finish completes the report when all is measured.
func (r *Report) finish() {
	for i := range r.Results {
		res := &r.Results[i]
		res.Sample = experiment.MedianOf(res.Samples)
		s := shapeOf(res.Shape)
		res.Whole = res.Epoch * float64(s.Rows) / float64(min(r.Rows, s.Rows))
		if ours := r.find(res.Shape, res.Batch, Libra); ours != nil {
			res.Ratio = ratio(ours.Samples, res.Samples)
		}
	}
	for i := range r.Scaled {
		s := &r.Scaled[i]
		s.Whole = s.estimate()
		one := experiment.Find(r.Scaled, func(o Scaled) bool {
			return o.Shape == s.Shape && o.Batch == s.Batch && o.Workers == 1
		})
		if one != nil {
			s.Speedup = experiment.Quotient(one.estimate(), s.Whole)
		}
	}
	r.addTargets()
}

// ratio returns the median of the ratios of epochs within rounds.
func ratio(a, b []Sample) float64 {
	n := min(len(a), len(b))
	epoch := func(s Sample) float64 { return s.Epoch }
	return experiment.Ratios(experiment.Pick(a[:n], epoch), experiment.Pick(b[:n], epoch)).Median
}

// estimate is Equation 3, times the mini-batches of an epoch. The measured latency has MB/BW in it.
func (s *Scaled) estimate() float64 {
	iterations := float64((shapeOf(s.Shape).Rows + s.Batch - 1) / s.Batch)
	return iterations * (float64(microBatch)/float64(s.Batch)*s.Forward + s.Backward + s.Latency)
}

// addTargets compares what was measured with what is wanted, at the configuration that it is wanted
// of.
func (r *Report) addTargets() {
	want := func(what string, v experiment.Verdict) {
		r.Targets = append(r.Targets, experiment.Target{What: what, Verdict: v})
	}
	if dense := r.find("rcv1", 16, Dense); dense != nil && dense.Ratio > 0 && r.Workers == 4 {
		want("rcv1, mini-batches of 16: epoch of libra divided by that of dense", experiment.AtMost(0.1, dense.Ratio))
	}
	for _, l := range r.Losses {
		if most, known := map[int]float64{4: 2, 8: 0.5}[l.Bits]; known {
			want(fmt.Sprintf("%s, %d bits: loss of an epoch off that in float32, %%", l.Shape, l.Bits),
				experiment.AtMost(most, 100*l.Off))
		}
	}
}

// DropTargets implements [experiment.WithTargets].
func (r *Report) DropTargets() { r.Targets = nil }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	out.Table(fmt.Sprintf("Training of %s with %s: medians of %s on %s", english.Plural(r.Workers, "worker", ""),
		humanize.Comma(int64(r.Rows))+" rows", english.Plural(r.Rounds, "round", ""), english.Plural(r.CPUs, "CPU", "")),
		[]string{"data", "mini-batch", "method", "epoch, ms", "of all rows, s", "libra/method"},
		experiment.Pick(r.Results, func(res Result) []any {
			return []any{
				res.Shape, res.Batch, res.Method, fmt.Sprintf("%.1f", res.Epoch*1e3), fmt.Sprintf("%.2f", res.Whole),
				fmt.Sprintf("%.3f", res.Ratio),
			}
		}))
	if len(r.Losses) > 0 {
		out.Table(fmt.Sprintf("Training loss, mini-batches of %d", lossBatch),
			[]string{"data", "features", "first epoch", "last epoch", "largest difference, %"},
			experiment.Pick(r.Losses, func(l Losses) []any {
				return []any{
					l.Shape, l.features(), fmt.Sprintf("%.4f", l.Losses[0]), fmt.Sprintf("%.4f", l.Losses[len(l.Losses)-1]),
					fmt.Sprintf("%.2f", 100*l.Off),
				}
			}))
	}
	if len(r.Scaled) > 0 {
		out.Table("Computed, not measured: epochs of all rows by Equation 3 of the P4SGD paper, with measured parts",
			[]string{"data", "mini-batch", "workers", "network", "forward, µs", "backward, µs", "all-reduce, µs", "epoch, s",
				"speed-up"},
			experiment.Pick(r.Scaled, func(s Scaled) []any {
				micro := func(seconds float64) string { return fmt.Sprintf("%.1f", seconds*1e6) }
				return []any{
					s.Shape, s.Batch, s.Workers, s.Network, micro(s.Forward), micro(s.Backward), micro(s.Latency),
					fmt.Sprintf("%.3f", s.Whole), fmt.Sprintf("%.2f", s.Speedup),
				}
			}))
	}
	out.Note("The paper has an epoch of rcv1 of 0.5 of that with whole gradients (mini-batches of 16, 4 workers, FPGAs).")
	experiment.PrintTargets(out, r.Targets)
	experiment.PrintUnavailable(out, r.Unavailable)
}
