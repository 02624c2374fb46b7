// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// setFeature enables or disables a feature of an interface in the current namespace by one of
// ethtool's ETHTOOL_S... commands.
func setFeature(name string, cmd uint32, on bool) error {
	value := struct{ cmd, data uint32 }{cmd: cmd} // struct ethtool_value
	if on {
		value.data = 1
	}
	if err := sys.Ethtool(name, unsafe.Pointer(&value)); err != nil {
		return fmt.Errorf("ethtool command %#x on %s: %w", cmd, name, err)
	}
	return nil
}

// SetGRO enables or disables generic receive offload of a host's interface. It is enabled in a new
// bed. While it is disabled, the host's port on the switch supports XDP transmission only if the
// host has an XDP program.
func (n *Node) SetGRO(on bool) error {
	return n.Do(func() error { return setFeature(n.Interface, unix.ETHTOOL_SGRO, on) })
}

// tuneVeth prepares a veth end in the current namespace for XDP. The end must
// be up: before, veth has no NAPI context, so the kernel refuses to make it
// threaded, and does not note that GRO makes the end a target of redirects.
//   - No transmit checksum offload: a veth pair passes "to be filled in"
//     checksums on, and an XDP program on the other side would see them wrong.
//   - GRO makes veth set up a NAPI context without an XDP program too, so that
//     the peer may redirect frames to it. (XDP_TX at the peer still needs a
//     program here: veth puts such frames into the ring, but wakes the
//     receiver only if it has a program.)
//   - Threaded NAPI where asked for.
func tuneVeth(name string, threaded bool) error {
	if err := setFeature(name, unix.ETHTOOL_STXCSUM, false); err != nil {
		return fmt.Errorf("testbed: switch transmit checksum offload off: %w", err)
	}
	if err := setFeature(name, unix.ETHTOOL_SGRO, true); err != nil {
		return fmt.Errorf("testbed: switch GRO on: %w", err)
	}
	if threaded {
		if err := sys.WriteAttr(name, "threaded", "1"); err != nil {
			return fmt.Errorf("testbed: make NAPI of %s threaded (needs Linux 5.12): %w", name, err)
		}
	}
	return nil
}
