// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// connect creates (or takes over) the kernel's socket, configures it, fills the fill ring, binds,
// and enters it in the XSKMAP. On error only frames in the state "filling" remain, which takeBack
// returns to the pool.
func (s *Socket) connect() (err error) {
	ifi, err := s.checkInterface()
	if err != nil {
		return err
	}
	if s.cfg.ShareQueue {
		if err := s.checkSharing(ifi); err != nil {
			return err
		}
		s.umem.sharing.Lock()
		defer s.umem.sharing.Unlock()
	}
	if err := s.createFD(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.keepPrepared(), s.teardown())
		}
	}()
	s.ifname = ifi.Name
	first := true // that the socket has fill and completion rings
	if s.cfg.ShareQueue {
		if first, err = s.joinQueue(queueID{s.home.rememberedID(), ifi.Index, s.cfg.Queue}); err != nil {
			return err
		}
	}
	if err := s.setRingSizes(first); err != nil {
		return err
	}
	info := Info{Interface: ifi.Name, Ifindex: ifi.Index, Queue: s.cfg.Queue, MTU: ifi.MTU}
	if info.TxBudget, err = s.setTxBudget(); err != nil {
		return err
	}
	if s.cfg.BusyPoll != nil {
		if err := s.cfg.BusyPoll.applyTo(s.fd); err != nil {
			return err
		}
		info.BusyPoll = true
	}
	if err := s.mapRings(first); err != nil {
		return err
	}
	s.calls = socketCalls{fd: s.fd}
	if s.mates != nil && s.mates.inTurn {
		s.calls = turnCalls{s.calls, &s.mates.sending}
	}
	if first {
		// Drivers in zero-copy mode take frames during bind, so fill the ring first.
		if err := s.stockFillRing(s.cfg.RxFrames); err != nil {
			return err
		}
		s.share = s.cfg.RxFrames
	}
	s.setQueue(queueID{s.home.rememberedID(), ifi.Index, s.cfg.Queue})
	s.direct = !s.cfg.ShareQueue // until the kernel reports it
	if err := s.bind(ifi.Index); err != nil {
		return err
	}
	departed(s.queue)
	flags, err := getOptions(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockopt XDP_OPTIONS", err)
	}
	info.ZeroCopy, info.SharedUMEM = flags&unix.XDP_OPTIONS_ZEROCOPY != 0, s.shared
	info.describe(ifi)
	s.useClock(&info)
	// Other descriptors of a passed socket may exist, and keep it open when ours is closed.
	s.direct = info.ZeroCopy || s.cfg.File != nil
	s.info.Store(&info)
	if info.ZeroCopy {
		if s.hook, err = useHook(hookID{s.home.rememberedID(), ifi.Index}); err != nil {
			return err
		}
	}
	if s.cfg.XSKMap != nil {
		err := s.cfg.XSKMap.Put(uint32(s.cfg.Queue), uint32(s.fd))
		if errors.Is(err, unix.EBADF) {
			return fmt.Errorf("%w: Config.XSKMap is closed; open sockets while it is not: %w", ErrConfig, err)
		}
		if errors.Is(err, unix.EPERM) {
			return s.unwritableMap("entered in", err)
		}
		if err != nil {
			return fmt.Errorf("afxdp: enter queue %d in the XSKMAP of %d entries: %w", s.cfg.Queue, s.cfg.XSKMap.MaxEntries(),
				err)
		}
	}
	if !first {
		// Last: frames in another socket's fill ring are not this one's to take back.
		if err := s.stockFillRing(s.inheritFrames()); err != nil {
			return errors.Join(err, s.removeFromMap())
		}
	}
	return nil
}

// unwritableMap explains that the XSKMAP cannot be changed, by any process or by this one.
func (s *Socket) unwritableMap(what string, err error) error {
	if _, asked := s.cfg.XSKMap.Info(); errors.Is(asked, unix.EPERM) { // which any map permits
		return fmt.Errorf("%w: queue %d cannot be %s Config.XSKMap: the process may not call bpf(2), as under the seccomp profile of a container; allow it, or leave Config.XSKMap out and have the map's owner enter Socket.FD: %w", ErrPermission, s.cfg.Queue, what, err)
	}
	return fmt.Errorf("%w: queue %d cannot be %s Config.XSKMap, which is frozen, or its descriptor only for reading; pass a map that may be written: %w", ErrConfig, s.cfg.Queue, what, err)
}

// checkSharing refuses kernels on which two processors may take the same frames from a shared fill
// ring.
func (s *Socket) checkSharing(ifi *net.Interface) error {
	mode, err := attachedMode(ifi.Index)
	if err != nil || mode != AttachGeneric || !kernelBefore(kernelRelease(), 6, 15) {
		return err
	}
	return &FeatureError{
		Feature: "a shared queue of " + ifi.Name + ", with its program in generic mode,", Since: "6.15",
		Remedy: "attach the program in native mode, or leave Config.ShareQueue out", Err: unix.EOPNOTSUPP,
	}
}

// checkInterface finds problems for which the kernel would return a bare EINVAL, or nothing.
func (s *Socket) checkInterface() (*net.Interface, error) {
	ifi, err := s.presentInterface()
	if err != nil {
		return nil, err
	}
	if s.cfg.XSKMap == nil && s.cfg.File == nil { // otherwise the caller's program may know better
		if err := needEthernet(ifi, "a socket without a program of its own", "use an Ethernet device (a tap instead of a tun), or give the map of your own program (Config.XSKMap)"); err != nil {
			return nil, err
		}
	}
	// An Ethernet header and one VLAN tag are added to the MTU.
	need := ifi.MTU + minPacket + 4
	if s.cfg.MaxPacket > 0 {
		need = min(need, s.cfg.MaxPacket)
	}
	// Sent packets need not fit: Send checks each of them.
	if s.cfg.RxFrames > 0 && need > s.umem.RxRoom() && !s.cfg.MultiBuffer && ifi.Flags&net.FlagLoopback == 0 {
		return nil, fmt.Errorf("%w: %s has MTU %d and packets of up to %d bytes are to be received; a frame of %d has room for %d: "+
			"use larger frames, less headroom, Config.MultiBuffer, a smaller MTU, or, to drop larger packets, Config.MaxPacket",
			ErrFrameTooSmall, ifi.Name, ifi.MTU, need, s.umem.FrameSize(), s.umem.RxRoom())
	}
	if rx, tx, err := QueueCounts(ifi.Name); err == nil && s.cfg.Queue >= max(rx, tx) {
		return nil, fmt.Errorf("%w: %s has %d receive and %d transmit queues, queue %d was asked for (see ethtool -l %s)",
			ErrNoQueue, ifi.Name, rx, tx, s.cfg.Queue, ifi.Name)
	}
	return ifi, nil
}

// presentInterface prefers the name: who reopens a socket means another interface, if one has it.
func (s *Socket) presentInterface() (*net.Interface, error) {
	ifi, err := interfaceByName(s.cfg.Interface)
	if s.queue.ifindex != 0 && errors.Is(err, ErrInterfaceGone) {
		return interfaceByIndex(s.queue.ifindex)
	}
	return ifi, err
}

// QueueCounts returns how many receive and transmit queues of an interface are in use. Sockets on
// all of them see all packets. If the driver does not report them, the error is
// [errors.ErrUnsupported].
func QueueCounts(ifname string) (rx, tx int, err error) {
	if _, err := interfaceByName(ifname); err != nil {
		return 0, 0, err
	}
	ch, err := getChannels(ifname)
	if err != nil {
		return 0, 0, fmt.Errorf("afxdp: queues of %s: %w", ifname, err)
	}
	return int(ch.Rx + ch.Combined), int(ch.Tx + ch.Combined), nil
}

// createFD creates the kernel's socket or duplicates the passed one.
func (s *Socket) createFD() error {
	if s.cfg.File != nil {
		if family, err := unix.GetsockoptInt(int(s.cfg.File.Fd()), unix.SOL_SOCKET, unix.SO_DOMAIN); family != unix.AF_XDP {
			return fmt.Errorf("%w: Config.File is no AF_XDP socket, as NewSocketFD makes, or is closed: %w", ErrConfig,
				cmp.Or(err, error(unix.EAFNOSUPPORT)))
		}
		fd, err := unix.FcntlInt(s.cfg.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("afxdp: passed socket: %w", os.NewSyscallError("fcntl", err))
		}
		s.setFD(fd)
		return nil
	}
	fd, err := newSocket()
	s.setFD(fd)
	return err
}

// setQueue takes the lock because siblings may bind to a different queue.
func (s *Socket) setQueue(q queueID) {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	s.queue = q
}

// setFD takes the lock because other goroutines and siblings read the descriptor.
func (s *Socket) setFD(fd int) {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	s.fd = fd
	s.opened++
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("%w: AF_XDP sockets need CAP_NET_RAW, or a socket passed by a privileged process (Config.File): %w", ErrPermission, err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return -1, &FeatureError{Feature: "AF_XDP", Since: oldestKernel, Needs: "CONFIG_XDP_SOCKETS", Err: err}
	case err != nil:
		return -1, os.NewSyscallError("socket AF_XDP", err)
	}
	return fd, nil
}

// setRingSizes creates the rings in the kernel, unless a passed socket already has them.
func (s *Socket) setRingSizes(first bool) error {
	sizes := [...]struct {
		name string
		opt  int
		size int
	}{
		{"XDP_UMEM_FILL_RING", unix.XDP_UMEM_FILL_RING, s.cfg.FillRing},
		{"XDP_UMEM_COMPLETION_RING", unix.XDP_UMEM_COMPLETION_RING, s.cfg.CompletionRing},
		{"XDP_RX_RING", unix.XDP_RX_RING, s.cfg.RxRing},
		{"XDP_TX_RING", unix.XDP_TX_RING, s.cfg.TxRing},
	}
	if found, err := s.findPrepared(); found || err != nil {
		return err
	}
	own := sizes[:]
	if !first {
		own = sizes[2:] // the kernel refuses to bind a socket that has its own
	}
	for _, r := range own {
		err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.opt, r.size)
		if (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL)) && s.cfg.File != nil {
			return fmt.Errorf("%w: it was used before, pass a fresh one: %s: %w", ErrPassedFD, r.name, err)
		}
		if err != nil {
			return fmt.Errorf("afxdp: %s of %d entries: %w", r.name, r.size, err)
		}
	}
	return nil
}

// kernelTxBudget is TX_BATCH_SIZE of net/xdp/xsk.c: the number of packets that a system call sends
// in copy mode unless XDP_MAX_TX_SKB_BUDGET raises it.
const kernelTxBudget = 32

// setTxBudget removes two causes of TX stalls after a few frames in copy mode: the number of frames
// for each system call, and the send buffer, which is charged with the size of every packet in
// flight.
func (s *Socket) setTxBudget() (int, error) {
	// The kernel doubles the value. A socket buffer's own structures take less than a kilobyte in
	// addition to the data.
	size := s.cfg.TxRing * (s.umem.cfg.FrameSize + 1024) / 2
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
		// Without CAP_NET_ADMIN: as much as net.core.wmem_max allows.
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
			return 0, os.NewSyscallError("setsockopt SO_SNDBUF", err)
		}
	}
	if s.cfg.TxBudget <= kernelTxBudget {
		return kernelTxBudget, nil
	}
	err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, s.cfg.TxBudget)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return kernelTxBudget, nil // before 6.18; Kick repeats the call instead
	}
	if err != nil {
		return 0, os.NewSyscallError("setsockopt XDP_MAX_TX_SKB_BUDGET", err)
	}
	return s.cfg.TxBudget, nil
}

// mapRings maps the rings: only RX and TX for a later socket of a shared queue.
func (s *Socket) mapRings(first bool) error {
	off, err := getMmapOffsets(s.fd)
	if err != nil {
		return fmt.Errorf("afxdp: XDP_MMAP_OFFSETS: %w", err)
	}
	mmap := func(pgoff int64, o ringOffsets, n int, entry uint64) ([]byte, error) {
		size := int(o.Desc + uint64(n)*entry)
		mem, err := unix.Mmap(s.fd, pgoff, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("afxdp: map ring at offset %#x: %w", pgoff, os.NewSyscallError("mmap", err))
		}
		s.mappings = append(s.mappings, mem)
		return mem, nil
	}
	addrs := func(dst *addrRing, pgoff int64, o ringOffsets, n int) error {
		mem, err := mmap(pgoff, o, n, addrSize)
		if err == nil {
			*dst, err = newAddrRing(mem, o, uint32(n))
		}
		return err
	}
	descs := func(dst *descRing, pgoff int64, o ringOffsets, n int) error {
		mem, err := mmap(pgoff, o, n, descSize)
		if err == nil {
			*dst, err = newDescRing(mem, o, uint32(n))
		}
		return err
	}
	var errs []error
	if first {
		errs = append(errs,
			addrs(&s.fill, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fill, s.cfg.FillRing),
			addrs(&s.completion, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Completion, s.cfg.CompletionRing))
	}
	errs = append(errs,
		descs(&s.rx, unix.XDP_PGOFF_RX_RING, off.Rx, s.cfg.RxRing),
		descs(&s.tx, unix.XDP_PGOFF_TX_RING, off.Tx, s.cfg.TxRing))
	err = errors.Join(errs...)
	if err == nil && first && s.mates != nil {
		s.mates.bringRings(s, s.mappings[:2])
		s.mappings = s.mappings[2:]
	}
	return err
}
