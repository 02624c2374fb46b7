// SPDX-License-Identifier: Apache-2.0

// Package tenants measures whether tenants of one aggregator disturb each other.
// It is what 'libra bench tenants' runs; docs/benchmarks.md describes who they are.
package tenants

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Config is how long to measure, and how; [Defaults] is runs of three seconds.
type Config struct {
	// Duration of each of the two runs: ten harvests at least.
	Duration time.Duration
	// Harvest is the time between two harvests of the jobs, 1ms at
	// least.
	Harvest time.Duration
	// ThreadedNAPI is the switch's setting of that name.
	ThreadedNAPI bool
	// ChildCommand calls [RunChild]; nil: see [child.Command].
	ChildCommand []string
	// Progress, if not nil, is called before each run.
	Progress experiment.Progress
}

// Defaults returns the configuration of runs of three seconds.
func Defaults() Config { return Config{Duration: 3 * time.Second, Harvest: 20 * time.Millisecond} }

func (c *Config) check() error {
	if c.Harvest < time.Millisecond || c.Duration < 10*c.Harvest {
		return &experiment.ConfigError{Field: "harvest",
			Problem: fmt.Sprintf("%v for %v: at least 1ms, and ten harvests, are needed", c.Harvest, c.Duration)}
	}
	return nil
}
