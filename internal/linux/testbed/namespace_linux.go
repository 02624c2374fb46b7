// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// Namespace is a network namespace without a name. It ends, with its interfaces, when it is closed
// and no process and no socket is left in it. Its methods may be called from any goroutine.
type Namespace struct{ *sys.Namespace }

// NewNamespace creates a namespace with its loopback interface up.
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

// withoutIPv6 disables IPv6 for future interfaces of the thread's namespace. An interface's own
// setting would not last: if its MTU falls below the minimum of IPv6 and grows again, the interface
// gets the namespace's default. An error means that the kernel has no IPv6, or that /proc/sys is
// read-only, for which there is disableIPv6.
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

// SetUp sets an interface of the namespace up or down. An interface that is up has no IPv6 address,
// and sends nothing by itself.
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

// disableIPv6 prevents an interface's link-local address, and so duplicate address detection and
// router solicitations. An error means that the kernel has no IPv6, which has the same effect.
func disableIPv6(handle *netlink.Handle, link netlink.Link) {
	const addrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE of <linux/if_link.h>
	_ = handle.LinkSetIP6AddrGenMode(link, addrGenModeNone)
}

// Delete removes an interface, and the peer of a veth.
func (n *Namespace) Delete(ifname string) error {
	return n.with(ifname, func(handle *netlink.Handle, link netlink.Link) error { return handle.LinkDel(link) })
}

// Running reports whether an interface and its peer are up.
func (n *Namespace) Running(ifname string) (running bool, err error) {
	err = n.with(ifname, func(_ *netlink.Handle, link netlink.Link) error {
		running = link.Attrs().OperState == netlink.OperUp
		return nil
	})
	return running, err
}

// SetThreadedNAPI moves the receive work of an interface to its own kernel threads, which the
// scheduler can run on a different core from the sender's. On a veth pair it roughly doubles the
// rate of an echo. A veth has its own receive work only while an XDP program is attached, so attach
// first.
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
