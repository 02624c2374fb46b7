// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"net"
	"sync/atomic"
)

// gate lets one goroutine at a time into a half of a socket and lets Close, called from any
// goroutine, wait until it has left. Without it, Close would unmap rings that a running loop uses.
// The cost is two uncontended atomic operations per batch.
type gate struct {
	state atomic.Uint32
	left  chan struct{} // closed by the goroutine that leaves a closed gate
}

const (
	gateBusy   = 1 << 0
	gateClosed = 1 << 1
)

func newGate() gate { return gate{left: make(chan struct{})} }

// enterGate returns net.ErrClosed after closeGate, and ErrConcurrentUse if another
// goroutine is inside.
func (g *gate) enterGate() error {
	if g.state.CompareAndSwap(0, gateBusy) {
		return nil
	}
	return g.closedError()
}

func (g *gate) closedError() error {
	if g.state.Load()&gateClosed != 0 {
		return net.ErrClosed
	}
	return ErrConcurrentUse
}

func (g *gate) leaveGate() {
	if !g.state.CompareAndSwap(gateBusy, 0) {
		close(g.left)
	}
}

// isClosing reports, to the goroutine inside, that it should leave.
func (g *gate) isClosing() bool { return g.state.Load()&gateClosed != 0 }

// closeGate closes the gate. If a goroutine is inside it calls wake and waits. It returns false if
// the gate was already closed.
func (g *gate) closeGate(wake func()) bool {
	for {
		old := g.state.Load()
		if old&gateClosed != 0 {
			return false
		}
		if !g.state.CompareAndSwap(old, old|gateClosed) {
			continue
		}
		if old&gateBusy != 0 {
			wake()
			<-g.left
		}
		return true
	}
}
