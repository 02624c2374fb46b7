// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Config is what to live; [Defaults] is one life.
type Config struct {
	// Seed is that of the first life; the next ones have the next seeds.
	Seed uint64
	// Lives is the number of lives, from 1 on, and Duration is after which time no other begins.
	Lives    int
	Duration time.Duration
	// Steps is about how many steps a life has, from 100 to 1,000,000. There is a trouble for each
	// 100.
	Steps int
	// Kinds are the kinds of trouble.
	Kinds []Kind
	// Trace, if not nil, gets a line for everything that happens, and all lines of the processes'
	// logs.
	Trace func(line string)
	// Progress, if not nil, is called about once a second, from one goroutine.
	Progress func(Now)
}

// Now is how far a run is.
type Now struct {
	Seed    uint64
	Lives   int // that have ended
	Step    uint64
	Steps   uint64
	Trouble string // the last one
	Elapsed time.Duration
}

// Defaults returns the configuration of one life.
func Defaults() Config {
	return Config{Lives: 1, Duration: math.MaxInt64, Steps: 1500, Kinds: Kinds()}
}

func (c *Config) checkFields() error {
	return experiment.Check("chaos",
		experiment.InRange("lives", 1, math.MaxInt, c.Lives),
		experiment.InRange("minutes", time.Second, math.MaxInt64, c.Duration),
		experiment.InRange("steps", 100, 1_000_000, c.Steps),
	)
}

// ErrDiffers is wrapped by the error of [Run] if the weights of a life are not those of its
// reference.
var ErrDiffers = errors.New("the weights differ from those of the same training in one process")

// Replay is the command that lives the life of a seed again.
func (c *Config) Replay(seed uint64) string {
	text := fmt.Sprintf("libra chaos --seed %d", seed)
	if c.Steps != Defaults().Steps {
		text += fmt.Sprintf(" --steps %d", c.Steps)
	}
	if !slices.Equal(c.Kinds, Kinds()) {
		names := []string{}
		for _, k := range c.Kinds {
			names = append(names, string(k))
		}
		text += " --only " + cmp.Or(strings.Join(names, ","), "none")
	}
	return text
}
