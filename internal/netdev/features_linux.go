// Package netdev follows which network interfaces can transmit for XDP, in the
// calling thread's network namespace.
package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrUnknown means that the kernel does not tell what an interface can do for
// XDP: it is older than Linux 6.3.
var ErrUnknown = errors.New("this kernel does not tell which interfaces transmit for XDP (Linux 6.3 does)")

// The generic netlink family of <linux/netdev.h>, and its multicast group that
// hears of changes.
const (
	familyName  = "netdev"
	group       = "mgmt"
	version     = 1
	cmdDevGet   = 1
	devIfindex  = 1
	devFeatures = 3
	actNDOXmit  = 1 << 2
)

// header is struct genlmsghdr, with zero in its reserved bytes: the kernel insists
// on it here, and [nl.Genlmsg] does not see to it.
type header [nl.SizeofGenlmsg]byte

func (h header) Len() int          { return len(h) }
func (h header) Serialize() []byte { return h[:] }

// TransmitsXDP reports whether an interface takes frames that an XDP program
// redirects to it (NETDEV_XDP_ACT_NDO_XMIT). The error wraps ErrUnknown, or
// unix.ENODEV if there is no such interface.
func TransmitsXDP(index int) (bool, error) {
	family, err := xdpFamily()
	if err != nil {
		return false, err
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(header{cmdDevGet, version})
	req.AddData(nl.NewRtAttr(devIfindex, nl.Uint32Attr(uint32(index))))
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return false, fmt.Errorf("XDP features of interface %d: %w", index, err)
	}
	for _, answer := range answers {
		if len(answer) < nl.SizeofGenlmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(answer[nl.SizeofGenlmsg:])
		if err != nil {
			return false, fmt.Errorf("XDP features of interface %d: %w", index, err)
		}
		for _, a := range attributes {
			if a.Attr.Type == devFeatures && len(a.Value) == 8 {
				return binary.NativeEndian.Uint64(a.Value)&actNDOXmit != 0, nil
			}
		}
	}
	return false, fmt.Errorf("XDP features of interface %d: %w", index, ErrUnknown)
}
