// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/bridge"
	"github.com/libra-ina/libra/internal/linux/netdev"
)

// openXDPPlane loads the XDP aggregator and attaches it to the switch's
// interfaces.
func openXDPPlane(c *cluster.Config, log *slog.Logger) (plane, error) {
	mode, err := attachMode(c.Switch.XDPMode)
	if err != nil {
		return plane{}, err
	}
	a, err := bpf.Open(bpf.Options{Address: c.Switch.Address, Port: c.Port, Sample: c.Telemetry.OneIn()})
	if err != nil {
		return plane{}, err
	}
	what, closeAll := "xdp", a.Close
	for _, name := range c.Switch.Interfaces {
		if err := errors.Join(checkPort(name), checkMTU(name, c.Switch.Stripes)); err != nil {
			return plane{}, errors.Join(err, a.Close())
		}
		if err := a.Attach(name, mode); err != nil {
			return plane{}, errors.Join(err, a.Close())
		}
		if got, ok := a.Mode(name); ok {
			what = fmt.Sprintf("xdp %v", got)
		}
	}
	if err := a.CountsFailures(); err != nil {
		log.Warn("counters are incomplete", "error", err)
	}
	prepare := func(string) error { return nil }
	if c.Switch.ThreadedNAPI {
		restore, err := threadNAPI(c.Switch.Interfaces)
		if err != nil {
			return plane{}, errors.Join(err, a.Close())
		}
		closeAll = func() error {
			err := restore()
			return errors.Join(err, a.Close())
		}
		prepare = func(name string) error {
			_, err := threadNAPI([]string{name}) // the present one ends with its interface
			return err
		}
		what += ", threaded NAPI"
	}
	ports, err := keepPorts(c, a, log, prepare)
	if err != nil {
		return plane{}, errors.Join(err, closeAll())
	}
	follower, err := followBridge(c.Switch.Interfaces, a, netdev.TransmitsXDP, log)
	if err != nil {
		ports.closePorts()
		return plane{}, errors.Join(err, closeAll())
	}
	followed := newHosts(a, follower.Reach)
	return plane{
		Plane: closing{followed, func() error {
			ports.closePorts()
			follower.Close()
			return closeAll()
		}},
		what: what,

		jobMemory: bpf.JobMemory,
		reach:     followed.setServers,
	}, nil
}

// closing is a data plane that also restores other things when it is closed.
type closing struct {
	aggregator.Plane
	close func() error
}

func (c closing) Close() error { return c.close() }

func attachMode(name string) (afxdp.AttachMode, error) {
	switch name {
	case "native":
		return afxdp.AttachNative, nil
	case "generic":
		return afxdp.AttachGeneric, nil
	case "auto":
		return afxdp.AttachAuto, nil
	}
	return 0, fmt.Errorf("XDP mode %q is none of native, generic, auto", name)
}

// checkPort refuses an interface whose packets begin with their IP headers, where the program would
// find no frames; and a veth interface that has fewer receive queues than its peer has transmit
// queues: the kernel would refuse a program in native mode, with a message that is hard to
// understand.
func checkPort(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		var absent netlink.LinkNotFoundError
		if errors.As(err, &absent) {
			return fmt.Errorf("there is no interface %q here, only %v", name, interfaceNames())
		}
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if kind := link.Attrs().EncapType; kind != "ether" && kind != "loopback" {
		return fmt.Errorf("interface %s is of type %q, whose packets have no Ethernet headers: the switch needs ports that have, such as Ethernet, veth or tap devices",
			name, kind)
	}
	if link.Type() != "veth" {
		return nil
	}
	peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil || peer.Attrs().ParentIndex != link.Attrs().Index {
		return nil // the peer is in another namespace, where it cannot be checked
	}
	if rx, tx := link.Attrs().NumRxQueues, peer.Attrs().NumTxQueues; rx < tx {
		return fmt.Errorf("interface %s has %d receive queues but its peer %s has %d transmit queues, so XDP cannot run on it: make the pair with equal numbers (ip link add ... numrxqueues %d)",
			name, rx, peer.Attrs().Name, tx, tx)
	}
	return nil
}

func interfaceNames() []string {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// followBridge makes the program forward between hosts as the ports' bridge does. transmits is
// netdev.TransmitsXDP.
func followBridge(interfaces []string, a bridge.Plane, transmits func(index int) (bool, error),
	log *slog.Logger) (*bridge.Follower, error) {
	forwards := true
	for _, name := range interfaces {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		// A port that cannot transmit loses frames that are sent out of it.
		if _, err := transmits(ifi.Index); errors.Is(err, netdev.ErrUnknown) {
			log.Warn("frames between hosts go through the kernel's bridge", "error", err)
			forwards = false
			break
		}
	}
	return bridge.Follow(interfaces, a, forwards, log)
}

// hostMemory returns the bytes of memory that the host has.
func hostMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit) //nolint:unconvert // it has 32 bits on 32-bit machines
}
