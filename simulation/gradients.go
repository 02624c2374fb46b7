// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// gradient is one pushed number. A life has many; they are kept in arrays.
type gradient struct {
	push     *push
	param    int32 // key × dim + column
	applied  int16
	negative bool
	again    bool // its frame was refused for its numbering
}

// inUnits returns what a gradient adds to a sum in units of 2^exp, if it is in range.
func (g *gradient) inUnits(number, exp int) int64 {
	n := int64(number) << (gradExp - exp)
	if g.negative {
		return -n
	}
	return n
}

// gradients has a life's gradients by number, in parts, so that growing copies none.
type gradients struct {
	parts [][]gradient
	next  int // number
}

const partLen = 1 << 10

func (g *gradients) gradientAt(number int) *gradient { return &g.parts[number/partLen][number%partLen] }

// addGradient gives a gradient the next number.
func (g *gradients) addGradient(one gradient) (number int) {
	number = g.next
	if number/partLen == len(g.parts) {
		g.parts = append(g.parts, make([]gradient, partLen))
	}
	g.next++
	*g.gradientAt(number) = one
	return number
}

// flowID names the flow from one life of a worker to a receiver.
type flowID struct {
	to     *world.Host
	sender uint16
	epoch  uint16
}

// frameID names a frame.
type frameID struct {
	flowID
	seq uint32
}

// frames has the sent frames.
type frames struct {
	flows map[flowID]*flow
	last  *flow    // last result
	order []*frame // in the order of sending
}

// flow has frames by number, from wire.FirstSeq.
type flow struct {
	id     flowID
	frames []*frame
}

// maxFrames limits the numbers of a flow.
const maxFrames = 1 << 20

func (f *frames) flowOf(id flowID) *flow {
	if f.last == nil || f.last.id != id {
		at := f.flows[id]
		if at == nil {
			return nil
		}
		f.last = at
	}
	return f.last
}

// frameAt returns a frame, or nil if none with this number was sent.
func (f *frames) frameAt(id frameID) *frame {
	flow := f.flowOf(id.flowID)
	if n := id.seq - wire.FirstSeq; flow != nil && uint64(n) < uint64(len(flow.frames)) {
		return flow.frames[n]
	}
	return nil
}

// addFrame records a frame that is sent for the first time, and returns false if its number is
// beyond those that a life can reach.
func (f *frames) addFrame(one *frame) bool {
	n := one.id.seq - wire.FirstSeq
	if n >= maxFrames {
		return false
	}
	of := f.flowOf(one.id.flowID)
	if of == nil {
		of = &flow{id: one.id.flowID}
		f.flows[of.id] = of
	}
	for uint32(len(of.frames)) <= n {
		of.frames = append(of.frames, nil)
	}
	of.frames[n] = one
	f.order = append(f.order, one)
	return true
}
