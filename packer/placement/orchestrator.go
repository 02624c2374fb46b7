// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"

	"github.com/libra-ina/libra/packer"
)

// Orchestrator is a fast [Algorithm1]: it returns the same packets in the same order
// with the same contents, in amortised near-constant time for each gradient and without
// allocation once its scratch memory has grown to the batch size.
//
// P2.first() is the first open packet without register k. Packets only fill up and
// registers are only added, so for each k that packet never moves back. One cursor for
// each register replaces the search, and a union-find over the packets skips full
// ones.
type Orchestrator struct {
	m, capacity uint32
	cursor      []uint32   // for each register: packets before it carry the register or are full
	open        []uint32   // for each packet: itself while not full, else a later one
	filled      []uint32   // for each packet: its number of gradients
	slots       []Gradient // capacity for each packet
	rest        []Gradient // G'
}

// NewOrchestrator returns an Orchestrator for m registers and packets of the
// given capacity. It returns [packer.ErrConfig] if either is not positive or too large.
func NewOrchestrator(m, capacity int) (*Orchestrator, error) {
	if m < 1 || m > packer.PageSlots || capacity < 1 || capacity > packer.PageSlots {
		return nil, fmt.Errorf("%w: %d registers and packets of %d gradients, possible are 1 to %d", packer.ErrConfig, m,
			capacity, packer.PageSlots)
	}
	return &Orchestrator{m: uint32(m), capacity: uint32(capacity), cursor: make([]uint32, m)}, nil
}

// Packets is the result of [Orchestrator.Package]. It is valid until the next
// call.
type Packets struct {
	capacity int
	filled   []uint32
	slots    []Gradient
	rest     []Gradient
}

// Package distributes a batch over packets.
func (o *Orchestrator) Package(batch []Gradient) Packets {
	n := estimatePackets(len(batch), int(o.capacity))
	if len(o.open) <= n {
		o.open = make([]uint32, n+1)
		o.filled = make([]uint32, n)
		o.slots = make([]Gradient, n*int(o.capacity))
		o.rest = make([]Gradient, 0, n*int(o.capacity))
	}
	open, filled, slots := o.open[:n+1], o.filled[:n], o.slots[:n*int(o.capacity)]
	rest := o.rest[:0]
	clear(o.cursor)
	clear(filled)
	for i := range open {
		open[i] = uint32(i)
	}
	for _, g := range batch {
		k := g.Rank % o.m
		i := o.cursor[k]
		for open[i] != i { // find with path halving
			open[i] = open[open[i]]
			i = open[i]
		}
		if i == uint32(n) { // every packet is full or carries register k
			o.cursor[k] = i
			rest = append(rest, g)
			continue
		}
		o.cursor[k] = i + 1
		slots[i*o.capacity+filled[i]] = g
		filled[i]++
		if filled[i] == o.capacity {
			open[i] = i + 1
		}
	}
	return Packets{capacity: int(o.capacity), filled: filled, slots: slots, rest: rest}
}

// Len returns the number of packets.
func (p Packets) Len() int {
	return len(p.filled) + estimatePackets(len(p.rest), p.capacity)
}

// At returns packet i < Len as a view.
func (p Packets) At(i int) []Gradient {
	if i < len(p.filled) {
		return p.slots[i*p.capacity:][:p.filled[i]]
	}
	rest := p.rest[(i-len(p.filled))*p.capacity:]
	return rest[:min(p.capacity, len(rest))]
}
