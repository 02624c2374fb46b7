// Package netdev asks the kernel's generic netlink family netdev about interfaces of
// the calling thread's network namespace: which can transmit for XDP, and the
// threads of their NAPI contexts.
package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
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
	cmdNAPIGet  = 11
	ifindex     = 1 // of both commands
	devFeatures = 3
	napiPID     = 4
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
	answers, err := query(family, cmdDevGet, 0, index, devFeatures)
	if err != nil {
		return false, fmt.Errorf("XDP features of interface %d: %w", index, err)
	}
	for _, value := range answers {
		if len(value) == 8 {
			return binary.NativeEndian.Uint64(value)&actNDOXmit != 0, nil
		}
	}
	return false, fmt.Errorf("XDP features of interface %d: %w", index, ErrUnknown)
}

// NAPIThread returns the process id of the kernel thread that runs the one NAPI
// context of an interface. It needs threaded NAPI, and Linux 6.8.
func NAPIThread(index int) (int, error) {
	family, err := netlink.GenlFamilyGet(familyName)
	if err != nil {
		return 0, fmt.Errorf("look up netlink family %s: %w", familyName, err)
	}
	pids, err := query(family, cmdNAPIGet, unix.NLM_F_DUMP, index, napiPID)
	if err != nil {
		return 0, fmt.Errorf("list NAPI contexts (needs Linux 6.8): %w", err)
	}
	if len(pids) != 1 || len(pids[0]) != 4 {
		return 0, fmt.Errorf("interface has %d NAPI threads, want 1", len(pids))
	}
	return int(binary.NativeEndian.Uint32(pids[0])), nil
}

// query sends a command about an interface and returns the values that the answers
// have of one attribute.
func query(family *netlink.GenlFamily, command uint8, flags, index int, attribute uint16) (values [][]byte, err error) {
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(header{command, version})
	req.AddData(nl.NewRtAttr(ifindex, nl.Uint32Attr(uint32(index))))
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, answer := range answers {
		if len(answer) < nl.SizeofGenlmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(answer[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		for _, a := range attributes {
			if a.Attr.Type == attribute {
				values = append(values, a.Value)
			}
		}
	}
	return values, nil
}
