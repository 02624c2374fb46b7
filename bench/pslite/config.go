// SPDX-License-Identifier: Apache-2.0

// Package pslite measures programs of ps-lite whose hot pairs are summed in the network, beside the
// same programs over ps-lite's own ZMQVan. It is what 'libra bench pslite' runs; docs/benchmarks.md
// describes its workload.
package pslite

import (
	"errors"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// What is measured.
const (
	// Cold is test_kv_app_benchmark of ps-lite: one push and one pull of ten million pairs, none of
	// which is hot.
	Cold = "cold"
	// Small are pushes of 8 pairs, half of them hot, one after the other.
	Small = "small"
	// Batches are pushes of 4,096 pairs by all workers.
	Batches = "batches"
	// Pulls are the same, while one worker more pulls 8 hot keys.
	Pulls = "pulls"
)

// Over what the programs run.
const (
	// ZMQ is ps-lite's ZMQVan.
	ZMQ = "zmq"
	// Libra is Libra's van.
	Libra = "libra"
)

// Measures returns all that can be measured.
func Measures() []string { return []string{Cold, Small, Batches, Pulls} }

// Config is what to measure, and how often.
type Config struct {
	Built    string   // folder that 'make pslite' has filled
	Measures []string // see [Measures]
	Workers  int      // of Batches and Pulls
	Pushes   int      // of each of those workers
	Small    int      // pushes of one measurement of Small
	Apart    bool     // a host for each process, instead of one for all
	Backend  string   // cluster.BackendAFXDP or cluster.BackendUDP
	Rounds   int

	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config {
	return Config{
		Built: "out/pslite", Measures: Measures(), Workers: 4, Pushes: 1024, Small: 5000,
		Backend: cluster.BackendAFXDP, Rounds: 15,
	}
}

func (c *Config) checkFields() error {
	return experiment.Check("pslite", errors.Join(
		experiment.Known("measure", Measures(), c.Measures...),
		experiment.Known("backend", []string{cluster.BackendAFXDP, cluster.BackendUDP}, c.Backend),
		experiment.InRange("workers", 1, 62, c.Workers), // and one that pulls, and a server
		experiment.InRange("pushes", 1, 4000, c.Pushes), // the store of floats has their exact sums
		experiment.InRange("small", 1, 1_000_000, c.Small),
		experiment.InRange("rounds", 1, 1000, c.Rounds)))
}

// asWanted returns whether the targets are about this configuration.
func (c *Config) asWanted() bool {
	d := Defaults()
	return !c.Apart && c.Workers == d.Workers && c.Pushes == d.Pushes
}

// has returns whether something is to be measured.
func (c *Config) has(measure string) bool { return slices.Contains(c.Measures, measure) }
