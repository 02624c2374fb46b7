// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bind retries while the queue is busy and explains errnos.
func (s *Socket) bind(ifindex int) error {
	s.mode = s.cfg.Mode
	if s.mode == BindAuto {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("afxdp: driver of %s: socket: %w", s.cfg.Interface, err)
		}
		s.mode = safeMode(driverOf(fd, cmp.Or(s.ifname, s.cfg.Interface)))
		unix.Close(fd)
	}
	return s.explainBind(persist(s.cfg.BindTimeout, func() error { return s.tryBind(ifindex) }, func(err error) bool {
		return errors.Is(err, unix.EBUSY) && !s.closing()
	}))
}

// persist retries, with pauses, while the error may be temporary, until the timeout.
func persist(timeout time.Duration, try func() error, mayPass func(error) bool) error {
	deadline := time.Now().Add(timeout)
	for wait := nextWait(0); ; wait = nextWait(wait) {
		err := try()
		if !mayPass(err) || !time.Now().Before(deadline) {
			return err
		}
		time.Sleep(wait)
	}
}

// announcesTwice has the drivers that in zero-copy mode may report frames to the program a second
// time, after it already owns them, and pass such frames to the device.
//
// igb does so if the fill ring has too few frames for the rest of the driver's ring (Linux 6.14,
// its first version with zero-copy, to 7.2). igb_alloc_rx_buffers_zc then leaves an old length in
// the descriptor after the last one, which i40e and ixgbe clear and ice does not read.
// igb_clean_rx_irq_zc takes it, and those after it, for packets that have just arrived. The program
// cannot prevent this: packets take frames from the fill ring whether it runs or not.
var announcesTwice = map[string]bool{"igb": true}

// sendsWildHeaders has the drivers that in zero-copy mode may make the device read the bytes before
// a packet from memory that is not theirs.
//
// virtio_net does so as a module on amd64 (Linux 7.2). The header of all packets, zeros, is a
// variable of the module, and virtnet_xsk_pool_enable computes its physical address as if it were
// part of the kernel image. If the page at the resulting address contains anything but zeros, the
// host may drop or change the packets; they are completed as if they had been sent. On arm64 the
// kernel refuses such an address, and so zero-copy mode.
var sendsWildHeaders = map[string]bool{"virtio_net": true}

// safeMode is the meaning of BindAuto on an interface with the given driver.
func safeMode(driver string) BindMode {
	if announcesTwice[driver] || sendsWildHeaders[driver] {
		return BindCopy
	}
	return BindAuto
}

// nextWait returns the next pause: the first is 1 ms, and each is twice the last, up to 50 ms.
func nextWait(last time.Duration) time.Duration {
	return max(time.Millisecond, min(2*last, 50*time.Millisecond))
}

// tryBind binds once: to the UMEM of a suitable bound socket if there is one, else to its own
// registration of the memory.
func (s *Socket) tryBind(ifindex int) error {
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	addr := &unix.SockaddrXDP{Ifindex: uint32(ifindex), QueueID: uint32(s.cfg.Queue)}
	if s.hasMates() {
		return s.bindToMate(addr)
	}
	for _, sib := range u.sockets {
		if sib == s || !sib.bound || sib.mates != nil && sib.mates.unbound {
			continue
		}
		if share, err := s.mayShare(sib); err != nil {
			return err
		} else if !share {
			continue
		}
		// The kernel refuses any other flag: the mode and need-wakeup are inherited from the
		// sibling.
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(sib.fd)
		err := unix.Bind(s.fd, addr)
		if errors.Is(err, unix.EBADF) {
			continue // that sibling lost its interface
		}
		if errors.Is(err, unix.EOPNOTSUPP) && s.mode == BindAuto {
			continue // the sibling's interface supports zero-copy, this one does not
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
	switch s.mode {
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

// bindToMate binds to the pool of a socket on the same queue. The caller holds umem.mu.
func (s *Socket) bindToMate(addr *unix.SockaddrXDP) error {
	for _, sib := range s.umem.sockets {
		if sib == s || !sib.bound || sib.mates != s.mates {
			continue
		}
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(sib.fd)
		err := unix.Bind(s.fd, addr)
		if errors.Is(err, unix.EBADF) {
			// The interface was absent for a moment. The next attempt is the first socket of a new
			// queue.
			s.mates.unbound = true
			delete(s.umem.queues, s.mates.id)
			err = unix.ENODEV
		}
		s.bound, s.shared = err == nil, err == nil
		return err
	}
	return unix.EBUSY
}

// mayShare reports whether to use the registration of a bound sibling. A socket with its own
// registration cannot, and a requested mode must not silently become the sibling's: copy mode of
// BindAuto is known to be the only choice only if a sibling on the same interface had the same
// request.
func (s *Socket) mayShare(sib *Socket) (bool, error) {
	sameInterface := sib.queue.ns == s.queue.ns && sib.queue.ifindex == s.queue.ifindex
	if sameInterface && sib.cfg.Queue == s.cfg.Queue {
		if sib.closing() {
			return false, unix.EBUSY
		}
		return false, fmt.Errorf("%w: queue %d of %s: another socket of the UMEM has it; set Config.ShareQueue of both, or use another queue", ErrQueueBusy, s.cfg.Queue, s.cfg.Interface)
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
	switch s.mode {
	case BindCopy:
		return !zeroCopy, nil
	case BindZeroCopy:
		return zeroCopy, nil
	}
	return zeroCopy || sameInterface && sib.cfg.Mode == BindAuto, nil
}

// Flags of struct xdp_umem_reg.
const (
	umemTxSwChecksum  = 1 << 1
	umemTxMetadataLen = 1 << 2
)

// registerUMEM pins the memory for this socket.
func (s *Socket) registerUMEM() error {
	u := s.umem
	err := u.registerWith(func(flags, txMeta uint32) error {
		return registerUMEM(s.fd, u.mem, uint32(u.cfg.FrameSize), uint32(u.cfg.Headroom), flags, txMeta)
	})
	var feature *FeatureError
	switch {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %d bytes; raise RLIMIT_MEMLOCK (ulimit -l), use fewer frames, or give the process CAP_IPC_LOCK: %w", ErrMemlock, len(u.mem), err)
	case errors.As(err, &feature):
		return err
	case err != nil:
		return fmt.Errorf("afxdp: register UMEM of %d frames of %d bytes: %w", u.cfg.Frames, u.cfg.FrameSize, err)
	}
	return nil
}

// registerWith registers the memory, with room for requested TX metadata. Kernels from 6.11 on
// require a flag for that, 6.8 to 6.10 refuse the flag and use only the length, and older kernels
// accept the length without reading it. A length that is always invalid distinguishes the last two.
func (u *UMEM) registerWith(register func(flags, txMeta uint32) error) error {
	if u.txMeta == 0 {
		return register(0, 0)
	}
	const impossible = 1 // not a multiple of 8
	flags, length := uint32(0), uint32(u.txMeta)
	if u.cfg.SoftwareChecksum {
		flags |= umemTxSwChecksum
	}
	err := register(flags|umemTxMetadataLen, length)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if errors.Is(register(flags, impossible), unix.EINVAL) {
		if err = register(flags, length); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return &FeatureError{Feature: "TX metadata", Since: "6.8", Err: err}
}

// explainBind explains an errno of bind.
func (s *Socket) explainBind(err error) error {
	name, q := s.cfg.Interface, s.cfg.Queue
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: queue %d of %s was still taken after %v; close the other AF_XDP socket or use another queue: %w",
			ErrQueueBusy, q, name, s.cfg.BindTimeout, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTSUP):
		d, _ := QueryDevice(name) // unknown features are not mentioned
		return d.zeroCopyError(&s.cfg, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %s: %w", ErrInterfaceGone, name, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%w: %s: %w", ErrLinkDown, name, err)
	case errors.Is(err, unix.EINVAL) && s.cfg.MultiBuffer:
		return &FeatureError{Feature: fmt.Sprintf("multi-buffer on queue %d of %s", q, name), Since: "6.6", Err: err}
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: queue %d of %s; or, for a passed socket, it is restricted to another interface: %w",
			ErrNoQueue, q, name, err)
	}
	return fmt.Errorf("afxdp: bind to queue %d of %s: %w", q, name, err)
}
