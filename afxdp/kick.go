// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kernelCalls are the system calls that packets cause. Tests replace them by a simulated kernel.
type kernelCalls interface {
	// sendCall makes the kernel process the TX ring.
	sendCall() unix.Errno
	// receiveCall makes the kernel process the fill ring. In copy mode it only reports whether the
	// socket still has its interface.
	receiveCall() unix.Errno
}

type socketCalls struct{ fd int }

// The calls do not block, and bypass Go's scheduler, which would take the processor away from a
// goroutine whose call takes more than some 20µs, as one that sends a hundred packets does, and
// wake another thread to use it. That costs a tenth of the packet rate. The price is that a garbage
// collection waits for the call to end, at most for Config.TxBudget packets.

func (c socketCalls) sendCall() unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(c.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

func (c socketCalls) receiveCall() unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// linkError translates an errno of send or recv that concerns the interface. It returns nil for
// temporary errors.
func linkError(errno unix.Errno) error {
	switch errno {
	case unix.ENETDOWN:
		return ErrLinkDown
	case unix.ENXIO, unix.EBADF:
		// ENXIO: no longer bound, the interface was unregistered. EBADF: a failed Reopen left no
		// socket.
		return ErrInterfaceGone
	}
	return nil
}

// Kick makes the kernel send the packets that Send queued, if it needs a wake-up: always in copy
// mode, and in zero-copy mode while the driver sleeps. It makes as many system calls as the kernel
// needs while they make progress. It is no error if the kernel accepts no more at the moment
// because its own buffers are full: Backlog returns the number of remaining packets, and the next
// Kick or Poll continues. After the driver dropped a packet for lack of room, Kick waits until half
// of the packets in the driver are completed.
//
// It returns ErrLinkDown or ErrInterfaceGone if the interface cannot send; queued packets stay
// queued.
func (s *Socket) Kick() error {
	if err := s.out.gate.enterGate(); err != nil {
		return err
	}
	err := s.kick()
	s.out.gate.leaveGate()
	return err
}

func (s *Socket) kick() error {
	before, ok := s.tx.pendingEntries()
	if !ok {
		return ErrRingCorrupt
	}
	if s.tx.size == 0 {
		return fmt.Errorf("%w: %s: Reopen failed", ErrInterfaceGone, s.cfg.Interface)
	}
	if before == 0 && s.cfg.BusyPoll == nil {
		return nil
	}
	if s.holding() {
		return nil
	}
	hidden := uint32(0) // packets that calls may have taken without reporting it
	for s.tx.needWakeup() || s.cfg.BusyPoll != nil {
		s.out.count.TxKicks++
		errno := s.calls.sendCall()
		after, ok := s.tx.pendingEntries()
		if !ok {
			return ErrRingCorrupt
		}
		switch errno {
		case 0:
			// Before 6.6 also if other sockets have filled the completion ring.
			if after > 0 && after == before && !s.info.Load().ZeroCopy && s.mates == nil {
				// net/xdp/xsk.c does this for a queue beyond real_num_tx_queues.
				return fmt.Errorf("%w: %s has no transmit queue %d", ErrNoQueue, s.cfg.Interface, s.cfg.Queue)
			}
			return nil
		case unix.EBUSY:
			// The driver dropped one packet, whose frame completes, and the kernel stopped there.
			s.out.count.TxDropped++
			s.holdAbove, s.holdKicks = s.inDriver()/2, maxHold
			return nil
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			// EAGAIN: the budget of one call is used up, or send buffer, completion ring or device
			// queue are full.
			if after == before {
				// Before 6.17 the kernel publishes its position only when it has taken all packets
				// that it saw, whatever its budget.
				hidden += kernelTxBudget
				if errno == unix.EAGAIN && hidden < before && s.hidesProgress() {
					continue
				}
				s.out.count.TxStalls++
				return nil
			}
			before = after
		case unix.EINTR:
		default:
			return s.sendError(errno)
		}
		if after == 0 {
			return nil
		}
	}
	return nil
}

// sendError explains a permanent errno of send. In zero-copy mode it is the driver's
// (ndo_xsk_wakeup); there the kernel skips and counts packets that it refuses, in copy mode they
// stay at the ring's head.
func (s *Socket) sendError(errno unix.Errno) error {
	name := s.cfg.Interface
	if s.lacksProgram() {
		return fmt.Errorf("%w: %s: %w", ErrNoProgram, name, errno)
	}
	if err := linkError(errno); err != nil {
		return fmt.Errorf("%w: %s: %w", err, name, errno)
	}
	if (errno == unix.EINVAL || errno == unix.EOPNOTSUPP) && !s.info.Load().ZeroCopy {
		return fmt.Errorf("%w: the kernel refuses the packet at the head of the TX ring, Reopen the socket: %w",
			ErrDescriptor, errno)
	}
	return fmt.Errorf("afxdp: send on %s: %w", name, errno)
}

// hidesProgress reports whether the kernel may be one that does not report what it has taken while
// there is more. Kernels that support a budget report it.
func (s *Socket) hidesProgress() bool {
	info := s.info.Load()
	return !info.ZeroCopy && info.TxBudget == kernelTxBudget
}

// maxHold is the number of kicks for which holding expects the driver to continue.
const maxHold = 4096

// holding reports whether Kick should wait until the driver, which had no room for a packet, has
// sent half of its packets. Offering more at once costs both sides the work for a packet that the
// driver then drops.
func (s *Socket) holding() bool {
	if s.holdKicks == 0 {
		return false
	}
	s.holdKicks--
	if s.inDriver() <= s.holdAbove {
		s.holdKicks = 0
	}
	return s.holdKicks > 0
}

// inDriver returns how many packets the kernel has taken and not completed.
func (s *Socket) inDriver() uint32 {
	queued, _ := s.tx.pendingEntries()
	completed, _ := s.endedFrames(s.maxInFlight)
	return s.inFlight - min(s.inFlight, queued+completed)
}

// Backlog returns how many packets Send queued that the kernel has not taken: 0 after Close, when
// there is no ring any more. Only the sending goroutine may call it.
func (s *Socket) Backlog() int {
	if s.out.gate.enterGate() != nil {
		return 0
	}
	defer s.out.gate.leaveGate()
	n, _ := s.tx.pendingEntries()
	return int(n)
}
