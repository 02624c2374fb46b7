// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math/rand/v2"

	"github.com/libra-ina/libra/packer"
)

// Placement maps hot parameters to m registers.
type Placement interface {
	// Place returns the register, less than Registers, and the slot in it of the
	// parameter with a scalar rank.
	Place(rank uint32) (register, slot uint32)
	// Registers returns m.
	Registers() int
}

// Heat is the heat-based placement of the paper's §3.4, with m = Heat registers:
// rank r lives in register r mod m, slot r div m. Parameters of adjacent ranks, which
// are likely to share a packet, live in different registers.
type Heat uint32

// Place implements [Placement].
func (m Heat) Place(rank uint32) (register, slot uint32) {
	return rank % uint32(m), rank / uint32(m)
}

// Registers implements [Placement].
func (m Heat) Registers() int { return int(m) }

// Random is the baseline of the paper's §5.4: parameters are assigned to the
// registers at random, equally many to each.
type Random struct {
	position []uint32 // of each rank in a random order
	m        uint32
}

// NewRandom places n ranks in m registers. It returns [packer.ErrConfig] if m is not
// positive or n is negative.
func NewRandom(n, m int, seed uint64) (Random, error) {
	if m < 1 || n < 0 {
		return Random{}, fmt.Errorf("%w: %d parameters in %d registers", packer.ErrConfig, n, m)
	}
	position := make([]uint32, n)
	for i := range position {
		position[i] = uint32(i)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(n, func(i, j int) { position[i], position[j] = position[j], position[i] })
	return Random{position: position, m: uint32(m)}, nil
}

// Place implements [Placement]. Rank must be less than the n of NewRandom.
func (r Random) Place(rank uint32) (register, slot uint32) {
	p := r.position[rank]
	return p % r.m, p / r.m
}

// Registers implements [Placement].
func (r Random) Registers() int { return int(r.m) }

// Gradient is one hot (rank, value) pair, θ in Algorithm 1.
type Gradient struct {
	Rank  uint32
	Value float32
}

// Recirculations returns how often a switch must recirculate a packet, because a pass
// may access each register once: the largest number of the packet's gradients in one
// register, less one. Seen is scratch memory for p.Registers() numbers, all zero
// before and after.
func Recirculations(packet []Gradient, p Placement, seen []uint32) int {
	var most uint32
	for _, g := range packet {
		register, _ := p.Place(g.Rank)
		seen[register]++
		most = max(most, seen[register])
	}
	for _, g := range packet {
		register, _ := p.Place(g.Rank)
		seen[register] = 0
	}
	return max(0, int(most)-1)
}
