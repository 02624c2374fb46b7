//go:build linux

// Package testbed makes networks for tests and demonstrations out of virtual
// Ethernet pairs in network namespaces that have no name: they exist as long as
// somebody holds them open, so a killed process leaves nothing behind.
//
// It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
package testbed

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, held by an open descriptor. Its methods may
// be called from any goroutine.
type Namespace struct {
	file *os.File
}

// currentNamespace opens the calling thread's network namespace.
func currentNamespace() (*Namespace, error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("testbed: current network namespace: %w", err)
	}
	return &Namespace{f}, nil
}

// New creates an empty namespace with its loopback interface up and IPv6 off,
// so that nobody sends packets there unasked.
func New() (*Namespace, error) {
	var created *Namespace
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("testbed: new network namespace: %w", os.NewSyscallError("unshare", err))
		}
		// Before any interface exists; later ones inherit the default.
		for _, which := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("testbed: disable IPv6: %w", err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("testbed: loopback: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("testbed: loopback: %w", err)
		}
		created, err = currentNamespace()
		return err
	})
	return created, err
}

// onOwnThread runs fn on a thread whose network namespace fn may change.
func onOwnThread(fn func() error) error {
	runtime.LockOSThread()
	home, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	fnErr := fn()
	if err := unix.Setns(int(home.file.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, so the runtime ends it with its goroutine
		// rather than let others run in the wrong namespace.
		return errors.Join(fnErr, fmt.Errorf("testbed: return from namespace: %w", os.NewSyscallError("setns", err)))
	}
	runtime.UnlockOSThread()
	return fnErr
}

// Do runs fn, on the calling goroutine, with its thread in the namespace.
// Sockets that fn opens stay in the namespace afterwards; goroutines that it
// starts do not run there.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("testbed: enter namespace: %w", os.NewSyscallError("setns", err))
		}
		return fn()
	})
}

// FD returns the namespace's descriptor, which stays the Namespace's.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Close lets go of the namespace. It vanishes, with its interfaces, when no
// process and no socket is in it any more.
func (n *Namespace) Close() error { return n.file.Close() }

// VethConfig describes a pair of virtual Ethernet interfaces that are connected
// to each other.
type VethConfig struct {
	// Names of the two ends. Default "a" and "b".
	Names [2]string
	// Peer is the namespace of the second end. Nil: the same as the first's.
	Peer *Namespace
	// Queues is the number of receive and of transmit queues of each end.
	// Default 1. An end with an XDP program needs at least as many receive
	// queues as the other has transmit queues.
	Queues int
	// MTU of both ends. Default 1500.
	MTU int
}

// Veth creates a pair with both ends up.
func (n *Namespace) Veth(cfg VethConfig) error {
	if cfg.Names == [2]string{} {
		cfg.Names = [2]string{"a", "b"}
	}
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	err := n.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = cfg.Names[0], cfg.MTU
		attrs.NumRxQueues, attrs.NumTxQueues = cfg.Queues, cfg.Queues
		veth := &netlink.Veth{
			LinkAttrs: attrs, PeerName: cfg.Names[1], PeerMTU: uint32(cfg.MTU),
			PeerNumRxQueues: uint32(cfg.Queues), PeerNumTxQueues: uint32(cfg.Queues),
		}
		if cfg.Peer != nil {
			veth.PeerNamespace = netlink.NsFd(cfg.Peer.FD())
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return setUp(cfg.Names[0], true)
	})
	peer := cfg.Peer
	if peer == nil {
		peer = n
	}
	if err == nil {
		err = peer.SetUp(cfg.Names[1], true)
	}
	if err != nil {
		return fmt.Errorf("testbed: veth %s-%s: %w", cfg.Names[0], cfg.Names[1], err)
	}
	return nil
}

// SetUp sets an interface of the namespace up or down.
func (n *Namespace) SetUp(ifname string, up bool) error {
	return n.Do(func() error { return setUp(ifname, up) })
}

func setUp(ifname string, up bool) error {
	l, err := netlink.LinkByName(ifname)
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(l)
	}
	return netlink.LinkSetDown(l)
}

// Delete removes an interface, and with a veth its peer.
func (n *Namespace) Delete(ifname string) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

// Running reports whether an interface is up and its peer, too.
func (n *Namespace) Running(ifname string) (running bool, err error) {
	err = n.Do(func() error {
		l, err := netlink.LinkByName(ifname)
		if err == nil {
			running = l.Attrs().OperState == netlink.OperUp
		}
		return err
	})
	return running, err
}
