// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/sys"
)

// Namespace is a network namespace without a name. It disappears, with its
// interfaces, when it is closed and no process and no socket is in it any more. Its
// methods may be called from any goroutine.
type Namespace struct{ *sys.Namespace }

// NewNamespace makes a namespace with its loopback interface up.
func NewNamespace() (*Namespace, error) {
	made, err := sys.NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("testbed: %w", err)
	}
	n := &Namespace{made}
	if err := errors.Join(n.Do(withoutIPv6), n.SetUp("lo", true)); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// withoutIPv6 switches IPv6 off for the interfaces that the thread's namespace
// will have. A setting of an interface would not last: one whose MTU falls below
// that of IPv6 starts anew, with the namespace's default, when the MTU grows again.
// An error means that the kernel has no IPv6 or /proc/sys is read-only, for which
// there is disableIPv6.
func withoutIPv6() error {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	return nil
}

// handle returns a netlink socket of the namespace, which the caller closes.
func (n *Namespace) handle() (handle *netlink.Handle, err error) {
	err = n.Do(func() error {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("testbed: open netlink: %w", err)
	}
	return handle, nil
}

// with calls fn with an interface of the namespace.
func (n *Namespace) with(ifname string, fn func(*netlink.Handle, netlink.Link) error) error {
	handle, err := n.handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("testbed: find %s: %w", ifname, err)
	}
	return fn(handle, link)
}

// SetUp sets an interface of the namespace up or down. An interface that is up
// has no IPv6 address, and sends nothing unasked.
func (n *Namespace) SetUp(ifname string, up bool) error {
	return n.with(ifname, func(handle *netlink.Handle, link netlink.Link) error {
		set := handle.LinkSetDown
		if up {
			disableIPv6(handle, link)
			set = handle.LinkSetUp
		}
		if err := set(link); err != nil {
			return fmt.Errorf("testbed: set %s up (%v): %w", ifname, up, err)
		}
		return nil
	})
}

// disableIPv6 keeps an interface from making itself a link-local address, and
// with it from duplicate address detection and router solicitations. An error
// means that the kernel has no IPv6, which is as good.
func disableIPv6(handle *netlink.Handle, link netlink.Link) {
	const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE of <linux/if_link.h>
	_ = handle.LinkSetIP6AddrGenMode(link, addrGenModeNone)
}

// Delete removes an interface, and with a veth its peer.
func (n *Namespace) Delete(ifname string) error {
	return n.with(ifname, func(handle *netlink.Handle, link netlink.Link) error { return handle.LinkDel(link) })
}

// Running reports whether an interface is up and its peer, too.
func (n *Namespace) Running(ifname string) (running bool, err error) {
	err = n.with(ifname, func(_ *netlink.Handle, link netlink.Link) error {
		running = link.Attrs().OperState == netlink.OperUp
		return nil
	})
	return running, err
}

// SetThreadedNAPI moves the receive work of an interface to kernel threads of
// its own, which the scheduler can put on another core than the sender's. On a
// veth pair it roughly doubles the rate of an echo. A veth has receive work of
// its own only while an XDP program is attached to it, so attach first.
func (n *Namespace) SetThreadedNAPI(ifname string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return n.SetDeviceAttr(ifname, "threaded", value)
}

// SetDeviceAttr writes /sys/class/net/IFNAME/ATTR of the namespace, for example
// napi_defer_hard_irqs and gro_flush_timeout for busy polling.
func (n *Namespace) SetDeviceAttr(ifname, attr, value string) error {
	if err := n.Do(func() error { return sys.WriteAttr(ifname, attr, value) }); err != nil {
		return fmt.Errorf("testbed: set %s of %s to %s: %w", attr, ifname, value, err)
	}
	return nil
}
