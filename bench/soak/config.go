package soak

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Config says how to soak; its zero value does so for ten minutes.
type Config struct {
	// Duration of the run; 0 means DefaultDuration. The round that it ends in
	// is completed.
	Duration time.Duration
	// Bound is the longest time that a queue may be without an answer while
	// nothing is broken; 0 means DefaultBound.
	Bound time.Duration
	// Window is how many packets a queue has on their way, 1 to MaxWindow; 0
	// means DefaultWindow.
	Window int
	// Seed of the order of events and of how long they last.
	Seed uint64
	// PeerCommand is a command that calls RunPeer with the arguments that are
	// appended to it. Empty: this executable with the arguments "bench",
	// "soak", "peer".
	PeerCommand []string
	// Progress, if not nil, is called after each round.
	Progress func(Step)
}

// Defaults and limits of a Config.
const (
	DefaultDuration = 10 * time.Minute
	DefaultBound    = 5 * time.Second
	DefaultWindow   = 256
	MaxWindow       = 512 // half the frames of a queue
)

// Step is the state of a run after a round.
type Step struct {
	Done, Total time.Duration
	Events      int    // until now
	Answers     uint64 // packets that came back
	Failures    int
}

// String gives what is worth seeing beside the time.
func (s Step) String() string {
	return fmt.Sprintf("%d events, %d packets answered, %d failures", s.Events, s.Answers, s.Failures)
}

// ErrConfig is wrapped by errors about a Config.
var ErrConfig = errors.New("soak: invalid configuration")

func (c Config) withDefaults() (Config, error) {
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Bound == 0 {
		c.Bound = DefaultBound
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if len(c.PeerCommand) == 0 {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("soak: find this executable, which is to run the server: %w", err)
		}
		c.PeerCommand = []string{self, "bench", "soak", "peer"}
	}
	switch {
	case c.Duration < time.Second || c.Duration > 7*24*time.Hour:
		return c, fmt.Errorf("%w: duration of %v, want 1s to a week", ErrConfig, c.Duration)
	case c.Bound < 100*time.Millisecond || c.Bound > time.Hour:
		return c, fmt.Errorf("%w: bound of %v, want 100ms to 1h", ErrConfig, c.Bound)
	case c.Window < 1 || c.Window > MaxWindow:
		return c, fmt.Errorf("%w: window of %d packets, want 1 to %d", ErrConfig, c.Window, MaxWindow)
	}
	return c, nil
}
