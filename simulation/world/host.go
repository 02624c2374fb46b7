// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math/bits"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/wire"
)

// Host is a place in the network; its processes run one after another.
type Host struct {
	name string
	at   wire.Endpoint
	link *Link // of the newest process; nil: there was none
	down bool  // its machine has no power

	paused   bool
	since    time.Time     // the pause has begun, if paused
	resumed  time.Time     // the last pause has ended
	slept    time.Duration // in pauses that have ended
	pauses   int
	timeouts int // doubling timeouts that its pauses were long enough for
}

// NewHost adds a host to the network. at is the endpoint of its links.
func (w *World) NewHost(name string, at netip.AddrPort) *Host {
	h := &Host{name: name, at: wire.Endpoint{IP: at.Addr(), Port: at.Port()}}
	w.Net.hosts[at], w.Net.addresses[at.Addr()] = h, h
	w.Net.order = append(w.Net.order, h)
	return h
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Endpoint returns the endpoint of the host's links.
func (h *Host) Endpoint() wire.Endpoint { return h.at }

// Link returns the link of the host's newest process, nil if there was none.
func (h *Host) Link() *Link { return h.link }

// crashed reports whether the host's newest process has crashed.
func (h *Host) crashed() bool { return h.link != nil && h.link.crashed }

// Pause suspends the host's process.
func (h *Host) Pause() {
	if !h.paused {
		h.paused, h.since = true, time.Now()
		h.pauses++
	}
}

// Resume ends a pause.
func (h *Host) Resume() {
	if h.paused {
		h.paused, h.resumed = false, time.Now()
		h.slept += time.Since(h.since)
		h.timeouts += Timeouts(time.Since(h.since))
	}
}

// Paused reports whether the host's process is suspended.
func (h *Host) Paused() bool { return h.paused }

// Pauses returns how often the host's process was suspended.
func (h *Host) Pauses() int { return h.pauses }

// ResumedAt returns when the last pause has ended.
func (h *Host) ResumedAt() time.Time { return h.resumed }

// Slept returns for how long the host's process has been suspended.
func (h *Host) Slept() time.Duration {
	if h.paused {
		return h.slept + time.Since(h.since)
	}
	return h.slept
}

// Timeouts returns how many doubling timeouts of a peer the pauses were long enough for.
func (h *Host) Timeouts() int { return h.timeouts }

// PowerUp gives the host's machine power again.
func (h *Host) PowerUp() { h.down = false }

// LeastTimeout is the timeout of a flow whose peer answers at once.
const LeastTimeout = 5 * time.Millisecond

// Timeouts returns the number of doubling timeouts in a time.
func Timeouts(d time.Duration) int { return 1 + bits.Len64(uint64(d/LeastTimeout)) }
