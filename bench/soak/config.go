package soak

import (
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// Config is how long to soak, and how; [Defaults] is ten minutes.
type Config struct {
	// Duration of the run, from 1s to a week. The round that it ends in is
	// completed.
	Duration time.Duration
	// Bound is the longest time that a queue may be without an answer while
	// nothing is broken, from 100ms to 1h.
	Bound time.Duration
	// Seed of the order of events and of how long they last.
	Seed uint64
	// ChildCommand is a command that calls [RunChild] with the argument that is
	// appended to it. Empty: this executable's hidden command.
	ChildCommand []string
	// Progress, if not nil, is called after each round with seconds.
	Progress harness.Progress
}

// Defaults returns the configuration of a run of ten minutes.
func Defaults() Config {
	return Config{Duration: 10 * time.Minute, Bound: 5 * time.Second, Seed: 1}
}

func (c *Config) check() error {
	return harness.Check("soak",
		harness.InRange("duration", time.Second, 7*24*time.Hour, c.Duration),
		harness.InRange("bound", 100*time.Millisecond, time.Hour, c.Bound),
	)
}
