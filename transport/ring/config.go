// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

const (
	// MaxWorkers is the largest number of workers of a ring.
	MaxWorkers = 1024
	// DefaultLimit is how long operations may stand still if the configuration does not say.
	DefaultLimit = 12 * time.Second

	// leastPayload holds the codes of a group of values, whatever they are.
	leastPayload = wire.BlockHead + 512
)

// Config describes a worker's end of a ring.
type Config struct {
	// Link carries the frames. The Ring owns and closes it once New succeeds.
	Link link.Link

	// Workers are the addresses of all workers, 2 to [MaxWorkers], in the same order at each of them:
	// each one sends to the next, the last one to the first. A zero Ethernet address is resolved where
	// the link needs one.
	Workers []wire.Endpoint
	// Place is this worker's in Workers, from 0.
	Place int
	// Job and Epoch are numbers of the ring, the same for all workers. Workers that start again at the
	// addresses of former ones take another Epoch, lest they take late frames for their own.
	Job, Epoch uint16

	// Values is the length of the vectors, the same for all workers.
	Values int
	// Codec says how values are coded, the same for all workers. With bound 0 they are not.
	Codec codec.Config

	// Limit is how long an operation may stand still: the time between the first and the last worker
	// that begins it, and more than any failure of the network that workers are to survive. 0 means
	// [DefaultLimit].
	Limit time.Duration
	// Ended is asked before each sleep whether the worker is still to wait, and an error, such as that
	// of a context, ends the Ring. It may be nil.
	Ended func() error
	// Look is the longest time to poll for frames before sleeping. 0 means 400 µs, a negative value no
	// polling.
	Look time.Duration
}

// checkConfig checks all fields.
func checkConfig(cfg Config) error {
	if cfg.Link == nil {
		return fmt.Errorf("%w: Link is missing", ErrConfig)
	}
	for _, f := range []struct {
		name             string
		value, low, high int
	}{
		{"the number of Workers", len(cfg.Workers), 2, MaxWorkers},
		{"Place", cfg.Place, 0, len(cfg.Workers) - 1},
		{"Values", cfg.Values, 1, math.MaxInt32},
		{"Codec.Bound", cfg.Codec.Bound, 0, codec.MaxBound},
		{"the link's largest payload", cfg.Link.Limits().MaxPayload, leastPayload, math.MaxInt32},
	} {
		if f.value < f.low || f.value > f.high {
			return fmt.Errorf("%w: %s: %d is not in [%d, %d]", ErrConfig, f.name, f.value, f.low, f.high)
		}
	}
	switch {
	case cfg.Limit < 0:
		return fmt.Errorf("%w: Limit %v is negative", ErrConfig, cfg.Limit)
	case cfg.Codec.Paper:
		return fmt.Errorf("%w: Codec.Paper: such codes do not stay the same when they are passed on", ErrConfig)
	case cfg.Codec.Bound == 0 && cfg.Codec.Scale != 0:
		return fmt.Errorf("%w: Codec.Scale is %d, but without Codec.Bound values are not coded", ErrConfig, cfg.Codec.Scale)
	}
	for i, w := range cfg.Workers {
		same := func(o wire.Endpoint) bool { return o.AddrPort() == w.AddrPort() }
		if k := slices.IndexFunc(cfg.Workers[:i], same); k >= 0 {
			return fmt.Errorf("%w: Workers: %d and %d have the same address %v", ErrConfig, k, i, w.AddrPort())
		}
	}
	return nil
}
