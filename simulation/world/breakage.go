// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"net/netip"
	"strings"
)

// Breakage is how a connection breaks.
type Breakage struct {
	Which int // connection of those that are open; of the one that carries a message, which end
	How   int // 0: for both ends; 1: for one, without notice to the other; 2: for one before the other
}

// Break breaks a connection.
func (n *Connections) Break(b Breakage) {
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	var open []*end
	for _, e := range n.ends {
		if !e.closed && !e.peer.closed {
			open = append(open, e)
		}
	}
	if len(open) > 0 {
		n.breakEnd(open[b.Which%len(open)], b.How)
	}
}

// BreakOf breaks the connection that a process has made with an address, as in [Breakage], first at
// the acceptor's end. It reports whether there is one.
func (n *Connections) BreakOf(p *Process, at netip.AddrPort, how int) bool {
	n.w.Mu.Lock()
	defer n.w.Mu.Unlock()
	for _, e := range n.ends {
		if e.of != p || e.closed || e.peer.closed || !strings.HasPrefix(e.name, fmt.Sprintf("%s>%v#", p.name, at)) {
			continue
		}
		n.breakEnd(e.peer, how)
		return true
	}
	return false
}

// breaksAt breaks the connection of e at a message to its peer, which may be lost, unless it is
// closed. The lock is held.
func (n *Connections) breaksAt(e *end, b Breakage) bool {
	if n.w.healed || e.closed {
		return false
	}
	if b.Which%2 == 0 {
		e = e.peer
	}
	n.breakEnd(e, b.How)
	return true
}

// breakEnd breaks a connection at one end first. The lock is held.
func (n *Connections) breakEnd(e *end, how int) {
	n.w.Tell("%s breaks, way %d\n", e.name, how)
	n.broken++
	// If the end of the acceptor alone is closed, silently, the client does not find out in time.
	n.hooks.Breaks(how == 1 && e.preface == 0 && strings.HasSuffix(e.name, " back"))
	switch how {
	case 0:
		e.closeEnd(errReset)
		e.peer.closeEnd(errReset)
	case 1: // half open: the other end has to find out
		e.closeEnd(errReset)
		e.silent = true
		e.peer.silent = true
	default: // like the first, but data in flight still arrive
		e.closeEnd(errReset)
	}
}
