package engine

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Commands and attributes of the generic netlink family "netdev"
// (linux/netdev.h).
const (
	netdevFamily      = "netdev"
	netdevCmdNAPIGet  = 11
	netdevNAPIIfindex = 1
	netdevNAPIPID     = 4
)

// napiThread returns the process id of the kernel thread that runs the one NAPI
// context of an interface in the current namespace.
func napiThread(ifindex int) (int, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return 0, fmt.Errorf("look up netlink family %s: %w", netdevFamily, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	// struct genlmsghdr, whose last two bytes the kernel wants to be zero;
	// nl.Genlmsg has only the first two.
	req.AddRawData([]byte{netdevCmdNAPIGet, 1, 0, 0})
	req.AddRawData(nl.NewRtAttr(netdevNAPIIfindex, nl.Uint32Attr(uint32(ifindex))).Serialize())
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("list NAPI contexts (needs Linux 6.8): %w", err)
	}
	var pids []int
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("parse NAPI context: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevNAPIPID && len(a.Value) >= 4 {
				pids = append(pids, int(nl.NativeEndian().Uint32(a.Value)))
			}
		}
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("interface has %d NAPI threads, want 1", len(pids))
	}
	return pids[0], nil
}
