// SPDX-License-Identifier: Apache-2.0

// Package netdev asks the kernel's generic netlink family netdev about interfaces of the calling
// thread's network namespace: their drivers' features for XDP and AF_XDP, support for XDP
// transmission, and NAPI contexts.
package netdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrUnknown means that the kernel does not report an interface's XDP features: it is older than
// Linux 6.3.
var ErrUnknown = errors.New("this kernel does not report which interfaces support XDP transmission (Linux 6.3 does)")

// Of <linux/netdev.h>.
const (
	cmdDevGet   = 1
	cmdQueueGet = 10
	cmdNAPIGet  = 11
	ifindex     = 1 // of devices and NAPI contexts
	napiPID     = 4
	actNDOXmit  = 1 << 2
)

// TransmitsXDP reports whether an interface accepts frames that an XDP program redirects to it
// (NETDEV_XDP_ACT_NDO_XMIT). The error wraps ErrUnknown, or unix.ENODEV if there is no such
// interface.
func TransmitsXDP(index int) (bool, error) {
	family, err := xdpFamily()
	if err != nil {
		return false, err
	}
	answers, err := family.query(cmdDevGet, 0, number(ifindex, index))
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

// NAPIThread returns the process id of the kernel thread that runs the one NAPI context of an
// interface. It requires threaded NAPI and Linux 6.8.
func NAPIThread(index int) (int, error) {
	family, err := xdpFamily()
	if err != nil {
		return 0, err
	}
	contexts, err := family.query(cmdNAPIGet, unix.NLM_F_DUMP, number(ifindex, index))
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
