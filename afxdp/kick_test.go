// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// kickCase is a kernel that answers calls to send with errno and takes this number of packets at
// each.
func kickCase(t *testing.T, packets int, errno unix.Errno, taken int) (*Socket, *simKernel) {
	t.Helper()
	s, k := newSim(t, simConfig{frames: 128, ring: 128})
	descs := make([]Desc, packets)
	for i := range descs {
		f, _ := s.Pool().Alloc()
		descs[i] = Desc{Frame: f, Off: 256, Len: 60}
	}
	if n, err := s.Send(descs); n != packets || err != nil {
		t.Fatal(n, err)
	}
	k.onSend = func() unix.Errno {
		for range taken {
			k.transmit()
		}
		return errno
	}
	return s, k
}

func TestKickContinuesWhileTheKernelTakesPackets(t *testing.T) {
	for name, errno := range map[string]unix.Errno{"EAGAIN": unix.EAGAIN, "ENOBUFS": unix.ENOBUFS} {
		t.Run(name, func(t *testing.T) {
			s, k := kickCase(t, 100, errno, 16)
			if err := s.Kick(); err != nil {
				t.Fatal(err)
			}
			if s.Backlog() != 0 || k.kicks != 7 {
				t.Errorf("backlog %d after %d calls, want 0 after 7", s.Backlog(), k.kicks)
			}
		})
	}
}

func TestKickStopsWithoutProgress(t *testing.T) {
	s, k := kickCase(t, 100, unix.EAGAIN, 0)
	if err := s.Kick(); err != nil {
		t.Fatal(err)
	}
	if s.Backlog() != 100 || k.kicks != 1 || s.out.count.TxStalls != 1 {
		t.Errorf("backlog %d, %d calls, %d stalls", s.Backlog(), k.kicks, s.out.count.TxStalls)
	}
	// Later it continues.
	k.onSend = func() unix.Errno { k.tx.cons += 100; k.tx.consumer.Store(k.tx.cons); return 0 }
	if err := s.Kick(); err != nil || s.Backlog() != 0 {
		t.Errorf("backlog %d, %v", s.Backlog(), err)
	}
}

// A kernel that took packets at first and then takes none is not called again.
func TestKickStopsWhereProgressEnds(t *testing.T) {
	s, k := kickCase(t, 100, 0, 0)
	k.onSend = func() unix.Errno {
		if k.kicks == 1 || k.kicks > 10 { // so that a Kick without end has one
			for range 10 {
				k.transmit()
			}
		}
		return unix.EAGAIN
	}
	if err := s.Kick(); err != nil || s.Backlog() != 90 || k.kicks != 2 || s.out.count.TxStalls != 1 {
		t.Errorf("backlog %d after %d calls, %d stalls, want 90 after 2 and 1, %v", s.Backlog(), k.kicks, s.out.count.TxStalls, err)
	}
}

// Kernels before 6.17 publish the taken packets only with the last one.
func TestKickContinuesWhileProgressIsHidden(t *testing.T) {
	s, k := kickCase(t, 100, 0, 0)
	s.info.Store(&Info{TxBudget: kernelTxBudget})
	k.onSend = func() unix.Errno {
		if k.kicks*kernelTxBudget < 100 {
			return unix.EAGAIN
		}
		for range 100 {
			k.transmit()
		}
		return 0
	}
	if err := s.Kick(); err != nil || s.Backlog() != 0 || k.kicks != 4 {
		t.Errorf("backlog %d after %d calls, want 0 after 4, %v", s.Backlog(), k.kicks, err)
	}
	// A kernel that takes nothing is not called for ever.
	s, k = kickCase(t, 100, unix.EAGAIN, 0)
	s.info.Store(&Info{TxBudget: kernelTxBudget})
	if err := s.Kick(); err != nil || s.out.count.TxStalls != 1 || k.kicks != 4 {
		t.Errorf("%d calls, %d stalls, want 4 and 1, %v", k.kicks, s.out.count.TxStalls, err)
	}
}

// EBUSY: the driver has no room and dropped one packet. It is not called until it has sent half of
// its packets.
func TestKickSparesAFullDriver(t *testing.T) {
	s, k := kickCase(t, 100, 0, 0)
	var taken []uint64
	k.onSend = func() unix.Errno {
		for range 10 {
			d, _ := k.transmit()
			taken = append(taken, d.Addr)
		}
		return unix.EBUSY
	}
	kick := func(calls int) {
		t.Helper()
		if err := s.Kick(); err != nil || k.kicks != calls {
			t.Fatalf("%d calls, want %d, %v", k.kicks, calls, err)
		}
	}
	kick(1) // and the ten are in the driver
	if s.Backlog() != 90 || s.out.count.TxDropped != 1 {
		t.Errorf("backlog %d, %d dropped", s.Backlog(), s.out.count.TxDropped)
	}
	kick(1)
	for _, addr := range taken[:4] {
		k.complete(addr)
	}
	kick(1)
	k.complete(taken[4])
	kick(2)
	// A driver that never continues is tried again nevertheless.
	for k.kicks == 2 {
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKickErrors(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.ENETDOWN: ErrLinkDown,
		unix.ENXIO:    ErrInterfaceGone,
		unix.EBADF:    ErrInterfaceGone,
		unix.EINVAL:   ErrDescriptor,
		unix.EPERM:    unix.EPERM,
	} {
		s, _ := kickCase(t, 1, errno, 0)
		s.info.Store(&Info{})
		err := s.Kick()
		t.Run(errno.Error(), func(t *testing.T) {
			wantErr(t, err, want)
			wantErr(t, err, errno)
		})
	}
}

// In zero-copy mode an errno is the driver's: there are no errors of packets, and without a program
// each driver has a different errno.
func TestKickErrorsOfDrivers(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		errno   unix.Errno
		ifindex int // with no program; 0 for one that does not exist
		want    error
	}{
		{unix.EINVAL, lo.Index, ErrNoProgram},   // igb, ice, i40e
		{unix.ENETDOWN, lo.Index, ErrNoProgram}, // mlx5
		{unix.ENXIO, lo.Index, ErrNoProgram},    // ixgbe
		{unix.ENETDOWN, 0, ErrLinkDown},
		{unix.EINVAL, 0, unix.EINVAL},
	} {
		s, _ := kickCase(t, 1, c.errno, 0)
		s.info.Store(&Info{ZeroCopy: true, Ifindex: c.ifindex})
		err := s.Kick()
		t.Run(c.errno.Error(), func(t *testing.T) {
			wantErr(t, err, c.want)
			wantErr(t, err, c.errno)
			if errors.Is(err, ErrDescriptor) {
				t.Error(err)
			}
		})
	}
}

func TestKickOnlyWhenAsked(t *testing.T) {
	s, k := kickCase(t, 1, 0, 1)
	s.tx.flags.Store(0)
	if err := s.Kick(); err != nil || k.kicks != 0 {
		t.Errorf("%d calls although the driver is awake, %v", k.kicks, err)
	}
	s.tx.flags.Store(ringNeedWakeup)
	if err := s.Kick(); err != nil || k.kicks != 1 {
		t.Errorf("%d calls, want 1, %v", k.kicks, err)
	}
	if err := s.Kick(); err != nil || k.kicks != 1 {
		t.Errorf("%d calls with nothing to send, want 1, %v", k.kicks, err)
	}
}

// In copy mode the kernel returns success and takes nothing if the interface has no such transmit
// queue.
func TestKickDetectsAbsentQueue(t *testing.T) {
	s, _ := kickCase(t, 1, 0, 0)
	s.info.Store(&Info{})
	wantErr(t, s.Kick(), ErrNoQueue)
}
