// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// lingering makes a socket look like one in zero-copy mode whose queue the
// kernel releases late: a second descriptor keeps the kernel's socket, and with
// it the queue. The returned function releases it.
func lingering(t *testing.T, s *Socket) (release func()) {
	t.Helper()
	s.direct = true
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
}

// A closed socket's frames are lent until its queue is free.
func TestReclaimWaitsForTheDevice(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	pool := newPool(t, u, 0)
	s := open(t, ns, pool, Config{Interface: "a", RxFrames: 16, BindTimeout: 50 * time.Millisecond})
	sent := newPackets(t, s, 0, 4, 60)
	if n, err := s.Send(sent); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	release := lingering(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		flying, err := s.Reclaim()
		wantErr(t, err, ErrStillLent)
		if len(flying) != 0 {
			t.Errorf("frames %v came back", flying)
		}
		if diff := cmp.Diff(Census{Free: 44, Filling: 16, InFlight: 4}, u.Census()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	release()
	s.cfg.BindTimeout = eventLimit
	flying, err := s.Reclaim()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(frameNumbers(sent), flying); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Census{Free: 60, Yours: 4}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The next socket on the queue, on any UMEM, is proof enough: it does not matter that Reclaim
// cannot get the queue.
func TestReclaimAfterTheQueueHasANewSocket(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	s := open(t, ns, pool, Config{Interface: "a", BindTimeout: 20 * time.Millisecond})
	lingering(t, s)()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	if _, err := s.Reclaim(); err != nil || pool.Available() != 64 {
		t.Errorf("%v, %d of 64 frames are free", err, pool.Available())
	}
}

// The interface's end is one, too.
func TestReclaimAfterTheInterfaceWent(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	s := open(t, ns, pool, Config{Interface: "a", BindTimeout: 20 * time.Millisecond})
	defer lingering(t, s)()
	if err := ns.Delete("a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reclaim(); err != nil || pool.Available() != 64 {
		t.Errorf("%v, %d of 64 frames are free", err, pool.Available())
	}
}

// A Reopen that fails returns no frames; one that succeeds returns all.
func TestReopenWaitsForTheDevice(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	s := open(t, ns, newPool(t, u, 0), Config{Interface: "a", RxFrames: 16, BindTimeout: 50 * time.Millisecond})
	sent := newPackets(t, s, 0, 4, 60)
	if n, err := s.Send(sent); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	release := lingering(t, s)
	wantErr(t, s.Reopen(t.Context()), ErrQueueBusy)
	done := make([]Frame, 8)
	if n, err := s.Completed(done); n != 0 || err != nil {
		t.Errorf("%d frames came back, %v", n, err)
	}
	if diff := cmp.Diff(Census{Free: 44, Filling: 16, InFlight: 4}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	release()
	s.cfg.BindTimeout = eventLimit
	if err := s.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := s.Completed(done)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(frameNumbers(sent), sortFrames(done[:n])); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
	rings, err := s.Rings()
	if err != nil || rings.Fill != 16 {
		t.Errorf("%d frames in the fill ring, want 16, %v", rings.Fill, err)
	}
	if diff := cmp.Diff(Census{Free: 44, Yours: 4, Filling: 16}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// If another interface has the name now, that proves nothing about the interface that had the
// frames.
func TestReopenOnAnotherInterfaceWaitsForTheDevice(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	s := open(t, ns, newPool(t, u, 0), Config{Interface: "a", RxFrames: 16, BindTimeout: 50 * time.Millisecond})
	before := s.Info().Ifindex
	release := lingering(t, s)
	err := ns.Do(func() error {
		l, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "a"
		next := &netlink.Veth{LinkAttrs: attrs, PeerName: "c"}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "former"), netlink.LinkSetUp(l), netlink.LinkAdd(next), netlink.LinkSetUp(next))
	})
	if err != nil {
		t.Fatal(err)
	}
	lent := Census{Free: 48, Filling: 16}
	for range 2 {
		wantErr(t, s.Reopen(t.Context()), ErrStillLent)
		if diff := cmp.Diff(lent, u.Census()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	release()
	s.cfg.BindTimeout = eventLimit
	if err := s.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := s.Info().Ifindex; now == before {
		t.Errorf("the socket is on interface %d again", now)
	}
	if rings, err := s.Rings(); err != nil || rings.Fill != 16 {
		t.Errorf("%d frames in the fill ring, want 16, %v", rings.Fill, err)
	}
	if diff := cmp.Diff(lent, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A name means a different interface in another namespace.
func TestReopenFromAnotherNamespace(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	other, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Veth(testbed.VethConfig{Names: [2]string{"x", "a"}}); err != nil {
		t.Fatal(err)
	}
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	want := s.Info().Ifindex
	check := func(what string, err error) {
		t.Helper()
		if got := s.Info().Ifindex; got != want || err != nil {
			t.Errorf("%s: socket is on interface %d, want %d, %v", what, got, want, err)
		}
	}
	check("Reopen", other.Do(func() error { return s.Reopen(t.Context()) }))
	// A new one of the same name, which gets the next number.
	err = errors.Join(ns.Delete("a"), ns.Veth(testbed.VethConfig{Names: [2]string{"b", "a"}}))
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		ifi, err := net.InterfaceByName("a")
		if err == nil {
			want = ifi.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	check("Recover", other.Do(func() error { return s.Recover(t.Context()) }))
}

// The frames of a queue that cannot be queried stay lent.
func TestReclaimMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	s := open(t, ns, pool, Config{Interface: "a", RxFrames: 16})
	lingering(t, s)()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	index := s.left.ifindex
	reclaim := func() error { _, err := s.Reclaim(); return err }
	for name, c := range map[string]struct {
		call  refuse.Call
		words string
	}{
		"socket":       {socketOf(unix.AF_XDP, unix.EDOM), "socket AF_XDP: "},
		"memory":       {refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: uint32(os.Getpagesize()), 3: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, Err: unix.EDOM}, "mmap: "},
		"registration": {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EDOM), "setsockopt XDP_UMEM_REG: "},
		"ring":         {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_COMPLETION_RING, unix.EDOM), "setsockopt of a ring: "},
		"bind":         {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EDOM}, "bind: "},
	} {
		before := refuse.CountDescriptors(t)
		refused(t, ns, name, unix.EDOM, fmt.Sprintf("queue 0 of interface %d: %s", index, c.words), reclaim, c.call)
		refused(t, ns, name, ErrStillLent, "", reclaim, c.call)
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
		if pool.Available() != 48 {
			t.Errorf("%s: %d frames are free", name, pool.Available())
		}
	}
	for _, c := range []struct {
		errno unix.Errno
		free  bool
	}{{unix.ENODEV, true}, {unix.EINVAL, true}, {unix.EBUSY, false}, {unix.ENETDOWN, false}} {
		refused(t, ns, c.errno.Error(), nil, "", func() error {
			free, err := isFree(index, 0)
			if free != c.free {
				t.Errorf("%v: free %v, want %v", c.errno, free, c.free)
			}
			return err
		}, refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: c.errno})
	}
	if err := reclaim(); err != nil || pool.Available() != 64 {
		t.Errorf("%v, %d frames are free", err, pool.Available())
	}
}
