// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"errors"
	"fmt"
	"time"

	"github.com/libra-ina/libra/wire"
)

// DefaultSilence is the default of Config.Silence.
const DefaultSilence = 12 * time.Second

// Config parametrises a [Window]. Zero fields mean their defaults.
type Config struct {
	// Size is the number of frames W that may be unacknowledged, and the span
	// of their sequence numbers: a power of two up to the default,
	// [wire.DefaultWindow], for which every receiver's [Filter] is
	// dimensioned.
	Size int

	// InitialRTO is the retransmission timeout before the first round trip is
	// measured. Default 20 ms. RFC 6298's 1 s is for the Internet; a round
	// trip in a data centre takes well under a millisecond, and the rest is
	// the peer's scheduling.
	InitialRTO time.Duration

	// MinRTO is the least timeout in addition to the round trip. Default 5 ms,
	// far above a round trip: a peer that shares its cores with other processes
	// answers only when it is scheduled.
	MinRTO time.Duration

	// MaxRTO bounds the exponential backoff. Default 1 s, so that a flow
	// resumes at most a second after its peer. A quarter of Silence is another
	// bound, if it is not below MinRTO, so that several retransmissions precede
	// a SilentPeerError.
	MaxRTO time.Duration

	// Silence is the longest time without an answer while frames are
	// unacknowledged and the caller listens; see [Window.Check]. Default 12 s: a link that is down
	// for ten is no reason to give a peer up, and the next repetition comes within MaxRTO.
	Silence time.Duration
}

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Size, wire.DefaultWindow)
	setDefault(&c.InitialRTO, 20*time.Millisecond)
	setDefault(&c.MinRTO, 5*time.Millisecond)
	setDefault(&c.MaxRTO, time.Second)
	setDefault(&c.Silence, DefaultSilence)
	if c.Size < 1 || c.Size > wire.DefaultWindow || c.Size&(c.Size-1) != 0 {
		return c, fmt.Errorf("retransmit: window of %d frames: must be a power of two up to %d", c.Size, wire.DefaultWindow)
	}
	if c.MinRTO < 1 || c.MaxRTO < c.MinRTO {
		return c, fmt.Errorf("retransmit: timeouts from %v to %v: must not be negative nor reversed", c.MinRTO, c.MaxRTO)
	}
	if c.InitialRTO < c.MinRTO || c.InitialRTO > c.MaxRTO {
		return c, fmt.Errorf("retransmit: initial timeout %v is not between %v and %v", c.InitialRTO, c.MinRTO, c.MaxRTO)
	}
	if c.Silence < 1 {
		return c, errors.New("retransmit: limit of silence is negative")
	}
	return c, nil
}

// longestRTO returns the longest timeout. c must have its defaults.
func (c Config) longestRTO() time.Duration { return max(c.MinRTO, min(c.MaxRTO, c.Silence/4)) }

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
