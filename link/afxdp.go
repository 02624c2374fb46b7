// SPDX-License-Identifier: Apache-2.0

package link

import (
	"log/slog"
	"net/netip"
	"time"
)

// DefaultSpin is how long an AF_XDP link polls its rings before it sleeps, unless AFXDPConfig.Spin
// is set: about the cost of falling asleep and waking up, so that at most half of the waiting is
// wasted.
const DefaultSpin = 20 * time.Microsecond

// AFXDPConfig describes a link on AF_XDP sockets.
type AFXDPConfig struct {
	// Interface is the name of the interface, in the network namespace of the
	// calling thread.
	Interface string
	// Local is an address of that interface, and the UDP port. While the link is open, frames to
	// that address and port do not reach the kernel's sockets; all others do. The link binds the
	// port, so that no other process of the host can send from it; a port that is already bound is
	// an error. A zone must name the interface.
	Local netip.AddrPort
	// MTU bounds the frames of the link, in bytes of an IP packet, as does the MTU of the
	// interface. It must fit the whole path to all peers, and be the same at all of them. 0 means
	// [wire.DefaultMTU]; values above [wire.MaxMTU] count as that.
	MTU int
	// Queue is the transmit queue. Frames are received from all queues.
	Queue int
	// ZeroCopy requires zero-copy mode. By default the link uses it if the driver supports it and
	// is not known to be harmful in it, else copy mode.
	ZeroCopy bool
	// Spin is the longest time to spin before sleeping. 0 means DefaultSpin,
	// a negative value not to spin.
	Spin time.Duration
	// Sample makes the program note when packets arrive of which the sequence number is drawn
	// ([StampArrivals]): it is the sample of the link's endpoint, 0 for none.
	Sample int
	// Log gets what happens to the interface while the link is open, with the remedy where frames are
	// lost by it. Default: [slog.Default].
	Log *slog.Logger
}
