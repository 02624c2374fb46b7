// SPDX-License-Identifier: Apache-2.0

// Package latency measures where frames spend their time, as "Dissecting the Communication Latency
// in Distributed Deep Sparse Learning" (IMC '20) does: how long pushes and pulls take and in which
// part (its Figs. 4 and 5), how large answers are and how frequent requests (Figs. 6 and 7, from
// captures), what a server's frame costs by the number of its senders (Fig. 9), and which share of
// the updates is of the hottest parameters (Fig. 10). It is what 'libra bench latency' runs;
// docs/benchmarks.md describes it.
package latency

import (
	"errors"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/telemetry"
)

// ZeroMQ is the baseline of what senders cost.
const ZeroMQ = "zeromq"

// Config is what to measure, and how often.
type Config struct {
	Workers  int           // of the job whose frames are measured
	Batch    int           // rows of a push and of a pull
	Sample   int           // frames of which one is measured
	Duration time.Duration // of one measurement of the job
	Senders  []int         // that send to a server
	Frames   int           // that they send in one measurement
	Rounds   int
	// Baselines are what the cost of senders is compared with.
	Baselines []string
	// Logs are LibFM files whose parameters' updates are counted, each sample as one of a batch of
	// LogBatch.
	Logs     []string
	LogBatch int
	Top      int // how many of the parameters are the hottest

	// Captures are files of a server's or an aggregator's frames, in the format pcapng.
	Captures []string

	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config {
	return Config{Workers: 2, Batch: 4096, Sample: 4, Duration: time.Second, Senders: []int{1, 8, 64, 512}, Frames: 50_000,
		Rounds: 7, Baselines: []string{ZeroMQ}, LogBatch: 32, Top: 20_000}
}

func (c *Config) checkFields() error {
	return experiment.Check("latency", errors.Join(
		experiment.InRange("workers", 1, 64, c.Workers),
		experiment.InRange("push-rows", 1, 1_000_000, c.Batch),
		checkSample(c.Sample),
		experiment.InRange("duration", 10*time.Millisecond, time.Hour, c.Duration),
		experiment.InRange("senders", 1, 512, c.Senders...),
		experiment.InRange("frames", inFlight, 1<<24, c.Frames),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("log-batch", 1, 1_000_000, c.LogBatch),
		experiment.InRange("top", 1, 1<<31-1, c.Top),
		experiment.Known("baseline", []string{ZeroMQ}, c.Baselines...)))
}

// checkSample refuses a sample of no frames, too.
func checkSample(sample int) error {
	if err := telemetry.CheckSample(sample); err != nil {
		return &experiment.ConfigError{Field: "sample", Problem: err.Error()}
	}
	return experiment.InRange("sample", 1, 1<<16, sample)
}

// inFlight are the frames that wait for answers at the same time.
const inFlight = 64
