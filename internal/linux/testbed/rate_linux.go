// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

const (
	// rateBurst is how many bytes a limited interface may send at once.
	rateBurst = 32 << 10
	// rateQueue is how many bytes wait at a limited interface. More are dropped.
	rateQueue = 1 << 20
)

// LimitRate limits both directions of a host's cable to a number of bits a second, by a token
// bucket at each end. Frames that AF_XDP sockets send pass it by.
func (n *Node) LimitRate(bits float64) error {
	if n.PortName == "" {
		return fmt.Errorf("%w: %s has no cable", ErrConfig, n.Name)
	}
	if err := limitRate(n.ns, n.Interface, bits); err != nil {
		return err
	}
	return limitRate(n.sw.ns, n.PortName, bits)
}

func limitRate(ns *Namespace, ifname string, bits float64) error {
	rate := uint64(bits / 8)
	if rate < 1 {
		return fmt.Errorf("%w: a rate of %v bit/s", ErrConfig, bits)
	}
	return ns.with(ifname, func(handle *netlink.Handle, link netlink.Link) error {
		err := handle.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
			},
			Rate: rate, Limit: rateQueue, Buffer: netlink.Xmittime(rate, rateBurst),
		})
		if err != nil {
			return fmt.Errorf("testbed: limit the rate of %s: %w", ifname, err)
		}
		return nil
	})
}
