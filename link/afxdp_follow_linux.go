// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/internal/linux/netwatch"
	"github.com/libra-ina/libra/wire"
)

// A follower keeps up to date what an AF_XDP link has read of its interface and neighbours. Its
// watch has its own goroutine, which leaves sockets to the link's: it says when they can be opened
// again.
type follower struct {
	iface   *netwatch.Interface
	watch   *netwatch.Watch
	name    atomic.Pointer[string] // of the interface
	trouble atomic.Pointer[string]

	lost   atomic.Bool   // the sockets have no interface
	back   atomic.Bool   // there is one again
	heard  atomic.Uint64 // frames that the link delivered
	keptAt atomic.Int64  // index of the interface that keeps the link's Ethernet address, 0 for none

	mu    sync.Mutex // guards the attachment, and the paths
	paths []followed

	// Used by the watch.
	keeper           int // packet socket that keeps the link's Ethernet address, 0 for none
	heardThen        uint64
	heardAt, doubted time.Time
}

// followed is a path with its Ethernet address. Paths are not released, so the link holds only weak
// pointers to them.
type followed struct {
	path weak.Pointer[afxdpPath]
	to   netip.Addr
	mac  [6]byte
}

// silence is how long nothing may arrive at a link that sends before it doubts its neighbours'
// addresses. The kernel believes an address for some 30 seconds, a worker its peer's silence for
// 10.
const silence = 2 * time.Second

// beginFollowing starts the watch.
func (l *afxdpLink) beginFollowing() (err error) {
	f := &l.follow
	log := l.cfg.Log
	if log == nil {
		log = slog.Default()
	}
	if f.iface, err = netwatch.Find(l.cfg.Interface, log, netwatch.Needs{MinMTU: l.mtu, Address: l.local.IP}); err != nil {
		return err
	}
	f.iface.After = "the link goes on there"
	f.iface.Kept = "the link keeps the one that its peers know"
	f.heardAt = time.Now()
	// Opened now, because a process may give up its privileges.
	if f.keeper, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		f.keeper = 0
		return os.NewSyscallError("socket", err)
	}
	f.watch, err = netwatch.Start(netwatch.Everything, l.lookAgain)
	return err
}

func (f *follower) endFollowing() error {
	if f.watch != nil {
		f.watch.Close()
	}
	if f.keeper == 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(f.keeper))
}

// interfaceName returns the present name of the interface. The link's configuration has that of the
// start.
func (f *follower) interfaceName() string {
	if name := f.name.Load(); name != nil {
		return *name
	}
	return f.iface.Configured()
}

// explainError adds what is wrong with the interface to the last error of sending, which may be an
// old one.
func (f *follower) explainError(last error) error {
	text := f.trouble.Load()
	switch {
	case text == nil:
		return last
	case last == nil:
		return errors.New(*text)
	}
	return fmt.Errorf("%s (%w)", *text, last)
}

func (f *follower) addPath(p *afxdpPath, mac [6]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths = append(f.paths, followed{weak.Make(p), p.to.IP, mac})
}

// noWay is what is wrong with an interface if paths over it have no route or neighbour.
func noWay(to netip.Addr) string { return "no way to " + to.String() }

// forgetPaths stops following paths that are not held any more. Trouble with the way to a peer is
// over with the last path there. The caller holds f.mu.
func (f *follower) forgetPaths() {
	var gone []netip.Addr
	f.paths = slices.DeleteFunc(f.paths, func(p followed) bool {
		dead := p.path.Value() == nil
		if dead {
			gone = append(gone, p.to)
		}
		return dead
	})
	for _, to := range gone {
		if !slices.ContainsFunc(f.paths, func(p followed) bool { return p.to == to }) {
			f.iface.Problem(noWay(to), nil)
		}
	}
}

func (f *follower) setMatch(at *afxdp.Attachment, m afxdp.Match) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return at.SetMatch(m)
}

// lookAgain is called by the watch.
func (l *afxdpLink) lookAgain() {
	f := &l.follow
	s, err := f.iface.Look()
	f.iface.Problem("the interface cannot be read", err)
	if err != nil {
		return
	}
	f.trouble.Store(nil)
	if text := f.iface.Wrong(); text != "" {
		f.trouble.Store(&text)
	}
	if s.Index == 0 {
		return
	}
	f.name.Store(&s.Name)
	if s.Up {
		f.iface.Problem("the XDP program is not on the interface", l.keepProgram(s.Index))
		if (f.lost.Load() || l.tx.Info().Ifindex != s.Index) && !f.back.Swap(true) {
			l.tx.Wake()
		}
	}
	f.iface.Problem("the link's Ethernet address is not kept", l.keepAddress(s))
	if s.Up && s.Has(l.local.IP) { // otherwise there is no route, and the log says why
		l.refreshPaths(s.Name)
	}
}

// keepProgram attaches the program again if another process has detached it, or the interface is
// another one.
func (l *afxdpLink) keepProgram(index int) error {
	f := &l.follow
	f.mu.Lock()
	defer f.mu.Unlock()
	on, err := l.at.AttachedTo()
	if err != nil || on == index {
		return err
	}
	if err := l.at.Reattach(); err != nil {
		return unprivileged(err)
	}
	f.iface.Log.Warn("the XDP program was gone from the interface, and is attached again", "interface", f.iface.Configured())
	return nil
}

// keepAddress makes the interface accept frames to the Ethernet address of the link, which peers
// and the aggregator know it by, when the interface itself has another one.
func (l *afxdpLink) keepAddress(s netwatch.State) error {
	f := &l.follow
	if int(f.keptAt.Load()) == s.Index || string(s.MAC) == string(l.local.MAC[:]) {
		return nil
	}
	err := accept(f.keeper, uint32(s.Index), unix.PACKET_MR_UNICAST, l.local.MAC)
	if err == nil {
		f.keptAt.Store(int64(s.Index))
	}
	return err
}

// refreshPaths asks the kernel for the addresses of all paths again.
func (l *afxdpLink) refreshPaths(ifname string) {
	f := &l.follow
	now := time.Now()
	if heard := f.heard.Load(); heard != f.heardThen {
		f.heardThen, f.heardAt = heard, now
	}
	doubt := now.Sub(f.heardAt) > silence && now.Sub(f.doubted) > silence
	if doubt {
		f.doubted = now
	}
	var table neigh.Table
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetPaths()
	for i := range f.paths {
		known := &f.paths[i]
		path := known.path.Value()
		if path == nil { // since a moment ago
			continue
		}
		used := path.used.Swap(false)
		hop, ok, err := neigh.Again(ifname, path.to.IP, &table, doubt && used)
		f.iface.Problem(noWay(path.to.IP), err)
		if !ok || hop.MAC == known.mac {
			continue
		}
		to := path.to
		to.MAC = hop.MAC
		e, err := wire.NewEnvelope(l.local, to)
		if err != nil {
			continue // the addresses are those of the path, for which it was made before
		}
		path.envelope.Store(e)
		known.mac = hop.MAC
		f.iface.Log.Info("a peer has a different Ethernet address now, and frames go there", "peer", to.IP,
			"address", net.HardwareAddr(hop.MAC[:]).String())
	}
}

// reopenSockets binds the sockets to the interface again after it was gone. If that fails it is
// tried again after the watch's next look.
func (l *afxdpLink) reopenSockets() error {
	f := &l.follow
	f.back.Store(false)
	for i, s := range l.socks {
		q := &l.rx[i]
		q.owed = 0 // the new fill ring is full
		if err := l.releaseReceived(s, q); err != nil {
			return err
		}
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, s := range l.socks {
		if err := s.Recover(now); err != nil {
			if errors.Is(err, afxdp.ErrInterfaceGone) || errors.Is(err, afxdp.ErrLinkDown) {
				err = l.absorbError(err)
			}
			return unprivileged(err)
		}
	}
	f.lost.Store(false)
	return l.moveMemberships(uint32(l.tx.Info().Ifindex))
}

// unprivileged adds the remedy to an error of a process that has given up its privileges.
func unprivileged(err error) error {
	if errors.Is(err, afxdp.ErrPermission) {
		return fmt.Errorf("the process has given up the privileges that the interface needs again, as a host agent does: start it again: %w", err)
	}
	return err
}

// moveMemberships makes what the link has for its interface valid for another one.
func (l *afxdpLink) moveMemberships(index uint32) error {
	l.zone = index
	l.follow.keptAt.Store(0) // it ended with the former interface, even if the new one has its index
	var errs []error
	if l.joined.IsValid() {
		errs = append(errs, accept(l.member, index, unix.PACKET_MR_MULTICAST, l.groupMAC))
	}
	if linkLocalZone(l.local.IP, index) != 0 {
		port, err := reservePort(netip.AddrPortFrom(l.local.IP, l.local.Port), int(index))
		if err == nil {
			err = os.NewSyscallError("close", unix.Close(l.port))
			l.port = port
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
