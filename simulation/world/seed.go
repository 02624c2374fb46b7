// SPDX-License-Identifier: Apache-2.0

package world

import (
	"hash/fnv"
	"io"
	"math/rand/v2"
)

// Seed decides a life.
type Seed uint64

// Streams of random numbers of a world. Decisions of one do not change the draws of another. Stream
// 0 and those from FirstStream on are free for lives.
const (
	streamSchedule = 1 + iota
	streamNetwork
	FirstStream
)

// Stream returns a stream of random numbers.
func (s Seed) Stream(n uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(s), n)) }

// Named returns random numbers that depend only on a name, not on when they are drawn.
func (s Seed) Named(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	return s.Stream(h.Sum64() | 1<<63)
}

// Named is [Seed.Named] of the world's seed.
func (w *World) Named(name string) *rand.Rand { return w.options.Seed.Named(name) }
