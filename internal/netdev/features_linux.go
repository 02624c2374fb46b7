// SPDX-License-Identifier: Apache-2.0

// Package netdev asks the kernel's generic netlink family netdev about interfaces of
// the calling thread's network namespace: what their drivers have for XDP and AF_XDP,
// which of them can transmit for XDP, and their NAPI contexts.
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
	cmdQueueGet = 10
	cmdNAPIGet  = 11
	ifindex     = 1 // of devices and NAPI contexts
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
	answers, err := query(family, cmdDevGet, 0, attribute{ifindex, uint32(index)})
	if err != nil {
		return false, fmt.Errorf("XDP features of interface %d: %w", index, err)
	}
	for _, a := range answers {
		if features, ok := a.uint64(devFeatures); ok {
			return features&actNDOXmit != 0, nil
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
	contexts, err := query(family, cmdNAPIGet, unix.NLM_F_DUMP, attribute{ifindex, uint32(index)})
	if err != nil {
		return 0, fmt.Errorf("list NAPI contexts (needs Linux 6.8): %w", err)
	}
	var pids []uint32
	for _, c := range contexts {
		if pid, ok := c.uint32(napiPID); ok {
			pids = append(pids, pid)
		}
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("interface has %d NAPI threads, want 1", len(pids))
	}
	return int(pids[0]), nil
}

// attribute is one of a request.
type attribute struct {
	kind  int
	value uint32
}

// answer has the values of the attributes of an answer by their kinds.
type answer map[uint16][]byte

func (a answer) uint32(kind uint16) (uint32, bool) {
	value := a[kind]
	if len(value) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}

func (a answer) uint64(kind uint16) (uint64, bool) {
	value := a[kind]
	if len(value) != 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(value), true
}

// query sends a command and returns its answers.
func query(family *netlink.GenlFamily, command uint8, flags int, about ...attribute) (answers []answer, err error) {
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(header{command, version})
	for _, a := range about {
		req.AddData(nl.NewRtAttr(a.kind, nl.Uint32Attr(a.value)))
	}
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		a := answer{}
		for _, at := range attributes {
			a[at.Attr.Type] = at.Value
		}
		answers = append(answers, a)
	}
	return answers, nil
}
