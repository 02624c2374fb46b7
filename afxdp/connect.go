//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// connect creates (or takes over) the kernel's socket, sets it up, stocks the
// fill ring, binds, and enters it in the XSKMAP. On error nothing is left but
// frames in the state "filling", which takeBack returns to the pool.
func (s *Socket) connect() (err error) {
	ifi, err := s.checkInterface()
	if err != nil {
		return err
	}
	if err := s.createFD(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.teardown())
		}
	}()
	if err := s.setRingSizes(); err != nil {
		return err
	}
	info := Info{Interface: ifi.Name, Ifindex: ifi.Index, Queue: s.cfg.Queue, MTU: ifi.MTU}
	if info.TxBudget, err = s.setTxBudget(); err != nil {
		return err
	}
	if s.cfg.BusyPoll != nil {
		if err := s.cfg.BusyPoll.apply(s.fd); err != nil {
			return err
		}
		info.BusyPoll = true
	}
	if err := s.mapRings(); err != nil {
		return err
	}
	s.calls = socketCalls{fd: s.fd}
	// Drivers in zero-copy mode take frames during bind, so stock first.
	if err := s.stock(s.cfg.RxFrames); err != nil {
		return err
	}
	s.queue = queueID{s.home.id(), ifi.Index, s.cfg.Queue}
	s.direct = true // until the kernel tells
	if err := s.bind(ifi.Index); err != nil {
		return err
	}
	departed(s.queue)
	flags, err := getOptions(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockopt XDP_OPTIONS", err)
	}
	s.direct = flags&unix.XDP_OPTIONS_ZEROCOPY != 0
	info.ZeroCopy, info.SharedUMEM = s.direct, s.shared
	s.info.Store(&info)
	if info.ZeroCopy {
		if s.hook, err = useHook(hookID{s.home.id(), ifi.Index}); err != nil {
			return err
		}
	}
	if s.cfg.XSKMap != nil {
		if err := s.cfg.XSKMap.Put(uint32(s.cfg.Queue), uint32(s.fd)); err != nil {
			return fmt.Errorf("afxdp: enter queue %d in the XSKMAP of %d entries: %w", s.cfg.Queue, s.cfg.XSKMap.MaxEntries(), err)
		}
	}
	return nil
}

// checkInterface finds problems that the kernel would answer with a bare
// EINVAL, or not at all.
func (s *Socket) checkInterface() (*net.Interface, error) {
	ifi, err := net.InterfaceByName(s.cfg.Interface)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrInterfaceGone, s.cfg.Interface, err)
	}
	// Ethernet header and one VLAN tag come on top of the MTU.
	need := ifi.MTU + minPacket + 4
	if s.cfg.MaxPacket > 0 {
		need = min(need, s.cfg.MaxPacket)
	}
	// What is sent need not fit: Send looks at each packet.
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

// QueueCounts returns how many receive and transmit queues an interface has in
// use. Sockets on all of them see all packets. Drivers that do not tell give an
// error that is [errors.ErrUnsupported].
func QueueCounts(ifname string) (rx, tx int, err error) {
	ch, err := getChannels(ifname)
	if err != nil {
		return 0, 0, fmt.Errorf("afxdp: queues of %s: %w", ifname, err)
	}
	return int(ch.Rx + ch.Combined), int(ch.Tx + ch.Combined), nil
}

// createFD creates the kernel's socket or duplicates the passed one.
func (s *Socket) createFD() error {
	if s.cfg.File != nil {
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

// setFD is for goroutines that ask for the descriptor, and for siblings.
func (s *Socket) setFD(fd int) {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	s.fd = fd
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("%w: AF_XDP sockets need CAP_NET_RAW, or a socket passed by a privileged process (Config.File): %w", ErrPermission, err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return -1, &FeatureError{Feature: "AF_XDP", Since: "5.4", Needs: "CONFIG_XDP_SOCKETS", Err: err}
	case err != nil:
		return -1, os.NewSyscallError("socket AF_XDP", err)
	}
	return fd, nil
}

// NewSocketFD creates an AF_XDP socket that can be bound to no other interface
// than ifname, for a process without privileges: put it in an XSKMAP, pass it
// (SCM_RIGHTS, or exec.Cmd.ExtraFiles), and let that process call [Open] with
// Config.File. Creating it needs CAP_NET_RAW; binding it needs nothing, except
// that the UMEM must fit the process's RLIMIT_MEMLOCK.
func NewSocketFD(ifname string) (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	if err := unix.BindToDevice(fd, ifname); err != nil {
		return nil, errors.Join(fmt.Errorf("afxdp: restrict socket to %s: %w", ifname, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "af_xdp:"+ifname), nil
}

// setRingSizes creates the rings in the kernel.
func (s *Socket) setRingSizes() error {
	for _, r := range []struct {
		name string
		opt  int
		size int
	}{
		{"XDP_UMEM_FILL_RING", unix.XDP_UMEM_FILL_RING, s.cfg.FillRing},
		{"XDP_UMEM_COMPLETION_RING", unix.XDP_UMEM_COMPLETION_RING, s.cfg.CompletionRing},
		{"XDP_RX_RING", unix.XDP_RX_RING, s.cfg.RxRing},
		{"XDP_TX_RING", unix.XDP_TX_RING, s.cfg.TxRing},
	} {
		err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.opt, r.size)
		if errors.Is(err, unix.EBUSY) && s.cfg.File != nil {
			return fmt.Errorf("afxdp: passed socket is already bound, pass a fresh one: %s: %w", r.name, err)
		}
		if err != nil {
			return fmt.Errorf("afxdp: %s of %d entries: %w", r.name, r.size, err)
		}
	}
	return nil
}

// kernelTxBudget is TX_BATCH_SIZE of net/xdp/xsk.c: what a system call sends in
// copy mode unless XDP_MAX_TX_SKB_BUDGET raises it.
const kernelTxBudget = 32

// setTxBudget removes two causes of TX that stalls after a few frames in copy
// mode: the number of frames for each system call, and the send buffer, which
// is charged with the size of every packet in flight.
func (s *Socket) setTxBudget() (int, error) {
	// The kernel doubles the value. A socket buffer's own structures take less
	// than a kilobyte beside the data.
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

// mapRings maps the four rings.
func (s *Socket) mapRings() error {
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
	return errors.Join(
		addrs(&s.fill, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fill, s.cfg.FillRing),
		addrs(&s.completion, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Completion, s.cfg.CompletionRing),
		descs(&s.rx, unix.XDP_PGOFF_RX_RING, off.Rx, s.cfg.RxRing),
		descs(&s.tx, unix.XDP_PGOFF_TX_RING, off.Tx, s.cfg.TxRing),
	)
}

// bind retries while the queue is busy and turns errnos into advice.
func (s *Socket) bind(ifindex int) error {
	deadline := time.Now().Add(s.cfg.BindTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := s.tryBind(ifindex)
		if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) && !s.gate.closing() {
			time.Sleep(wait)
			continue
		}
		return s.explainBind(err)
	}
}

// Flags of struct xdp_umem_reg.
const (
	umemTxSwChecksum  = 1 << 1
	umemTxMetadataLen = 1 << 2
)

// tryBind binds once: to a sibling's UMEM if there is a suitable sibling, else
// to its own registration of the memory.
func (s *Socket) tryBind(ifindex int) error {
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	addr := &unix.SockaddrXDP{Ifindex: uint32(ifindex), QueueID: uint32(s.cfg.Queue)}
	for _, sib := range u.sockets {
		if sib == s || !sib.bound {
			continue
		}
		if share, err := s.mayShare(sib); err != nil {
			return err
		} else if !share {
			continue
		}
		// The kernel refuses any other flag: the mode and need-wakeup are
		// inherited from the sibling.
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(sib.fd)
		err := unix.Bind(s.fd, addr)
		if errors.Is(err, unix.EBADF) {
			continue // that sibling lost its interface
		}
		s.bound, s.shared = err == nil, err == nil
		return err
	}
	if !s.registered {
		if err := s.registerUMEM(); err != nil {
			return err
		}
		s.registered = true
	}
	addr.Flags, addr.SharedUmemFD = unix.XDP_USE_NEED_WAKEUP, 0
	switch s.cfg.Mode {
	case BindCopy:
		addr.Flags |= unix.XDP_COPY
	case BindZeroCopy:
		addr.Flags |= unix.XDP_ZEROCOPY
	}
	if s.cfg.MultiBuffer {
		addr.Flags |= unix.XDP_USE_SG
	}
	err := unix.Bind(s.fd, addr)
	s.bound, s.shared = err == nil, false
	return err
}

// mayShare says whether to use the registration of a bound sibling. A socket
// that has one of its own cannot, and what was asked for must not silently
// become the sibling's mode.
func (s *Socket) mayShare(sib *Socket) (bool, error) {
	if sib.cfg.Interface == s.cfg.Interface && sib.cfg.Queue == s.cfg.Queue {
		return false, unix.EBUSY
	}
	if sib.cfg.MultiBuffer != s.cfg.MultiBuffer {
		return false, fmt.Errorf("%w: sockets of one UMEM must agree on MultiBuffer", ErrConfig)
	}
	if s.registered {
		return false, nil
	}
	flags, err := getOptions(sib.fd)
	if err != nil {
		return false, os.NewSyscallError("getsockopt XDP_OPTIONS", err)
	}
	zeroCopy := flags&unix.XDP_OPTIONS_ZEROCOPY != 0
	return (!zeroCopy || s.cfg.Mode != BindCopy) && (zeroCopy || s.cfg.Mode != BindZeroCopy), nil
}

// registerUMEM pins the memory for this socket.
func (s *Socket) registerUMEM() error {
	u := s.umem
	var flags uint32
	if u.txMeta > 0 {
		flags |= umemTxMetadataLen
	}
	if u.cfg.SoftwareChecksum {
		flags |= umemTxSwChecksum
	}
	chunk, headroom := uint32(u.cfg.FrameSize), uint32(u.cfg.Headroom)
	err := registerUMEM(s.fd, u.mem, chunk, headroom, flags, uint32(u.txMeta))
	if errors.Is(err, unix.EINVAL) && u.txMeta > 0 {
		// 6.8 to 6.10 take the length without the flag.
		err = registerUMEM(s.fd, u.mem, chunk, headroom, flags&^umemTxMetadataLen, uint32(u.txMeta))
		if errors.Is(err, unix.EINVAL) {
			err = &FeatureError{Feature: "TX metadata", Since: "6.8", Err: err}
		}
	}
	switch {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %d bytes; raise RLIMIT_MEMLOCK (ulimit -l), use fewer frames, or give the process CAP_IPC_LOCK: %w", ErrMemlock, len(u.mem), err)
	case err != nil:
		return fmt.Errorf("afxdp: register UMEM of %d frames of %d bytes: %w", u.cfg.Frames, u.cfg.FrameSize, err)
	}
	return nil
}

// explainBind says what an errno of bind means here.
func (s *Socket) explainBind(err error) error {
	name, q := s.cfg.Interface, s.cfg.Queue
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: queue %d of %s was still taken after %v; close the other AF_XDP socket or use another queue: %w",
			ErrQueueBusy, q, name, s.cfg.BindTimeout, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTSUP):
		return &FeatureError{Feature: "zero-copy on " + name, Since: "5.1", Needs: "a driver with AF_XDP support", Err: err}
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %s: %w", ErrInterfaceGone, name, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%w: %s: %w", ErrLinkDown, name, err)
	case errors.Is(err, unix.EINVAL) && s.cfg.MultiBuffer:
		return &FeatureError{Feature: fmt.Sprintf("multi-buffer on queue %d of %s", q, name), Since: "6.6", Err: err}
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: queue %d of %s; or, for a passed socket, it is restricted to another interface: %w", ErrNoQueue, q, name, err)
	}
	return fmt.Errorf("afxdp: bind to queue %d of %s: %w", q, name, err)
}
