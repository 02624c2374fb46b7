// SPDX-License-Identifier: Apache-2.0

// Package soak keeps AF_XDP echo traffic flowing while it breaks what the
// traffic needs, again and again, and holds package afxdp to losing nothing but
// packets. It is what 'libra bench soak' runs; docs/benchmarks.md describes its links,
// its rounds and what is checked.
package soak

import (
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Config is how long to soak, and how; [Defaults] is ten minutes.
type Config struct {
	// Duration of the run, from 1s to a week. The round that it ends in is
	// completed; there is one at least.
	Duration time.Duration
	// Bound is the longest time that a queue may be without an answer while
	// nothing is broken, from 100ms to 1h.
	Bound time.Duration
	// Seed of the order of events and of how long they last.
	Seed uint64
	// ChildCommand calls [RunChild]; nil: see [child.Command].
	ChildCommand []string
	// Progress, if not nil, is called after each round with seconds.
	Progress experiment.Progress
}

// Defaults returns the configuration of a run of ten minutes.
func Defaults() Config {
	return Config{Duration: 10 * time.Minute, Bound: 5 * time.Second, Seed: 1}
}

func (c *Config) checkFields() error {
	return experiment.Check("soak",
		experiment.InRange("duration", time.Second, 7*24*time.Hour, c.Duration),
		experiment.InRange("bound", 100*time.Millisecond, time.Hour, c.Bound),
	)
}
