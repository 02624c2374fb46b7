// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"time"
)

// DefaultSpin is how long an AF_XDP link looks at its rings before it sleeps,
// unless AFXDPConfig.Spin says otherwise: about what falling asleep and waking
// up cost, so that at most half of the waiting is wasted.
const DefaultSpin = 20 * time.Microsecond

// AFXDPConfig describes a link on AF_XDP sockets.
type AFXDPConfig struct {
	// Interface is the name of the interface, in the network namespace of the
	// calling thread.
	Interface string
	// Local is an address of that interface, and the UDP port. Frames to that
	// port no longer reach the kernel's sockets while the link is open; all
	// others do. The link binds the port, so that no other process of the host
	// can send from it; it is an error if one has bound it already. A zone
	// must name the interface.
	Local netip.AddrPort
	// MTU bounds the frames of the link, in bytes of an IP packet; so does the MTU of the interface. It is
	// to be what the whole path carries to all peers, and the same at all of them. 0 means [wire.DefaultMTU];
	// larger ones than [wire.MaxMTU] count as that.
	MTU int
	// Queue is the transmit queue. Frames are received from all queues.
	Queue int
	// ZeroCopy insists on zero-copy mode. Default: zero-copy mode where the card's driver has it
	// and is not known to do harm in it, else copy mode.
	ZeroCopy bool
	// Spin is the longest time to spin before sleeping. 0 means DefaultSpin,
	// a negative value not to spin.
	Spin time.Duration
}
