// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// Each step of Open may fail. Then the error names the step, and Open keeps neither a frame nor a
// descriptor.
func TestOpenMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Queues: 4})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	pool := newPool(t, u, 0)
	cfg := Config{Interface: "b", XSKMap: at.XSKMap(), BusyPoll: &BusyPoll{}, RxRing: 64, TxRing: 64, FillRing: 32, CompletionRing: 16}
	open := func() error {
		s, err := Open(pool, cfg)
		if err == nil {
			err = s.Close()
		}
		return err
	}
	before := refuse.CountDescriptors(t)
	for name, c := range map[string]struct {
		call  refuse.Call
		want  error
		words string
	}{
		"no privilege":      {socketOf(unix.AF_XDP, unix.EPERM), ErrPermission, "need CAP_NET_RAW"},
		"the same, wrapped": {socketOf(unix.AF_XDP, unix.EPERM), unix.EPERM, "afxdp: missing privilege: AF_XDP sockets need"},
		"no such family":    {socketOf(unix.AF_XDP, unix.EAFNOSUPPORT), errors.ErrUnsupported, "CONFIG_XDP_SOCKETS"},
		"socket":            {socketOf(unix.AF_XDP, unix.EDOM), unix.EDOM, "socket AF_XDP: "},
		"eventfd":           {refuse.Call{Number: unix.SYS_EVENTFD2, Err: unix.EDOM}, unix.EDOM, "eventfd"},
		"fill ring":         {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_FILL_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_UMEM_FILL_RING of 32 entries: "},
		"completion ring":   {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_COMPLETION_RING, unix.EBUSY), unix.EBUSY, "afxdp: XDP_UMEM_COMPLETION_RING of 16 entries: "},
		"RX ring":           {setsockopt(unix.SOL_XDP, unix.XDP_RX_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_RX_RING of 64 entries: "},
		"TX ring":           {setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_TX_RING of 64 entries: "},
		"budget":            {setsockopt(unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, unix.EDOM), unix.EDOM, "setsockopt XDP_MAX_TX_SKB_BUDGET: "},
		"busy polling":      {setsockopt(unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, unix.ENOPROTOOPT), errors.ErrUnsupported, "preferred busy polling (SO_PREFER_BUSY_POLL)"},
		"its time":          {setsockopt(unix.SOL_SOCKET, unix.SO_BUSY_POLL, unix.EPERM), ErrPermission, "missing privilege: SO_BUSY_POLL needs CAP_NET_ADMIN"},
		"its budget":        {setsockopt(unix.SOL_SOCKET, unix.SO_BUSY_POLL_BUDGET, unix.EDOM), unix.EDOM, "afxdp: set SO_BUSY_POLL_BUDGET to 64: "},
		"offsets":           {getsockoptXDP(unix.XDP_MMAP_OFFSETS), unix.EDOM, "afxdp: XDP_MMAP_OFFSETS: "},
		"mapping":           {refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{3: unix.MAP_SHARED | unix.MAP_POPULATE}, Err: unix.EDOM}, unix.EDOM, "afxdp: map ring at offset 0x100000000: mmap: "},
		"UMEM":              {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EDOM), unix.EDOM, "afxdp: register UMEM of 64 frames of 2048 bytes: "},
		"UMEM's limit":      {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.ENOBUFS), ErrMemlock, "131072 bytes; raise RLIMIT_MEMLOCK"},
		"UMEM's privilege":  {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EPERM), ErrMemlock, "131072 bytes"},
		"bind":              {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EDOM}, unix.EDOM, "afxdp: bind to queue 0 of b: "},
		"mode":              {getsockoptXDP(unix.XDP_OPTIONS), unix.EDOM, "getsockopt XDP_OPTIONS: "},
		"map":               {bpfCommand(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM), unix.EDOM, "afxdp: enter queue 0 in the XSKMAP of 4 entries: "},
	} {
		refused(t, ns, name, c.want, c.words, open, c.call)
		if diff := (Census{Free: 64}); u.Census() != diff {
			t.Errorf("%s: frames are %+v", name, u.Census())
		}
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
	}
	fd := 0
	refused(t, ns, "no socket", unix.EDOM, "", func() (err error) { fd, err = newSocket(); return err }, socketOf(unix.AF_XDP, unix.EDOM))
	if fd != -1 {
		t.Errorf("no socket is descriptor %d", fd)
	}
	err := ns.Do(func() error {
		refuse.Exhaust(t, "", func() (func() error, error) {
			s, err := Open(pool, cfg)
			return s.Close, err
		})
		refuse.Exhaust(t, "afxdp: ", func() (func() error, error) {
			a, err := Attach(AttachConfig{Interface: "a", Match: MatchAll()})
			return a.Close, err
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = tryOpen(ns, pool, cfg)
	if !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "UMEM is closed") {
		t.Errorf("on a closed UMEM: %v", err)
	}
}

// Without CAP_NET_ADMIN, and on kernels before 6.18, a socket gets the available size. With it,
// send buffers have no limit.
func TestOpenMakesDo(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	cfg := Config{Interface: "a", TxRing: 64}
	const size = 64 * (2048 + 1024) // what net.core.wmem_max allows everywhere
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	old := errors.Is(unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, 64), unix.ENOPROTOOPT) // a new kernel has no ring yet to check 64 against
	unix.Close(fd)
	raised := func(budget int) int {
		if old {
			return kernelTxBudget
		}
		return max(budget, kernelTxBudget)
	}
	for name, c := range map[string]struct {
		calls  []refuse.Call
		budget int
		err    string
	}{
		"all":            {nil, raised(64), ""},
		"privilege":      {[]refuse.Call{setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUF, unix.EDOM)}, raised(64), ""},
		"old kernel":     {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, unix.ENOPROTOOPT)}, 32, ""},
		"no privilege":   {[]refuse.Call{setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, unix.EPERM)}, raised(64), ""},
		"no send buffer": {[]refuse.Call{setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, unix.EPERM), setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUF, unix.EDOM)}, 0, "setsockopt SO_SNDBUF: "},
	} {
		var want error
		if c.err != "" {
			want = unix.EDOM
		}
		refused(t, ns, name, want, c.err, func() error {
			s, err := Open(pool, cfg)
			if err != nil {
				return err
			}
			if got, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF); got != size || err != nil {
				t.Errorf("%s: a send buffer of %d bytes, %v; want %d", name, got, err, size)
			}
			if got := s.Info().TxBudget; got != c.budget {
				t.Errorf("%s: budget %d, want %d", name, got, c.budget)
			}
			return s.Close()
		}, c.calls...)
	}
	for _, budget := range []int{31, 32, 33} {
		s := open(t, ns, pool, Config{Interface: "a", TxBudget: budget})
		if got := s.Info().TxBudget; got != raised(budget) {
			t.Errorf("a budget of %d became %d", budget, got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The answers of siblings of one UMEM decide how a socket is bound.
func TestSiblingsThatCannotBeShared(t *testing.T) {
	for name, c := range map[string]struct {
		call   refuse.Call
		mode   BindMode
		want   error
		shared bool
	}{
		"sibling's mode is unknown":          {getsockoptXDP(unix.XDP_OPTIONS), BindAuto, unix.EDOM, false},
		"sibling lost its interface":         {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EBADF}, BindAuto, unix.EBADF, false},
		"sibling has zero-copy":              {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EOPNOTSUPP}, BindAuto, errors.ErrUnsupported, false},
		"sibling has zero-copy, and must do": {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EOPNOTSUPP}, BindCopy, errors.ErrUnsupported, false},
	} {
		ns := newNet(t, testbed.VethConfig{Queues: 2})
		u := newUMEM(t, UMEMConfig{Frames: 128})
		open(t, ns, newPool(t, u, 64), Config{Interface: "a", Mode: c.mode})
		pool := newPool(t, u, 64)
		var registered bool
		refused(t, ns, name, c.want, "", func() error {
			s := &Socket{in: half{gate: newGate()}, out: half{gate: newGate()}, umem: u, pool: pool, state: u.state, fd: -1, cfg: Config{Interface: "a", Queue: 1, Mode: c.mode}}
			var err error
			if s.fd, err = newSocket(); err != nil {
				return err
			}
			defer unix.Close(s.fd)
			ifi, err := net.InterfaceByName("a")
			if err != nil {
				return err
			}
			id, err := sys.ThreadNamespaceID()
			if err != nil {
				return err
			}
			s.queue = queueID{id, ifi.Index, 1}
			err = s.bind(ifi.Index)
			registered = s.registered
			return err
		}, c.call)
		// It registers its own only if the sibling's does not matter.
		if want := c.mode == BindAuto && !errors.Is(c.want, unix.EDOM); registered != want {
			t.Errorf("%s: registered itself: %v, want %v", name, registered, want)
		}
	}
}

// A bind that may succeed later is retried less and less often, but at least 20 times a second,
// until the limit. Other errors are returned at once.
func TestPausesBetweenTries(t *testing.T) {
	for name, c := range map[string]struct {
		end  error // of the fourth try
		want []int // times of the tries, in milliseconds
	}{
		"busy":    {unix.EBUSY, []int{0, 1, 3, 7, 15, 31, 63, 113, 163}},
		"failure": {unix.EDOM, []int{0, 1, 3, 7}},
		"success": {nil, []int{0, 1, 3, 7}},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var at []int
			err := persist(150*time.Millisecond, func() error {
				at = append(at, int(time.Since(start)/time.Millisecond))
				switch len(at) {
				case 4:
					return c.end
				case 100: // without pauses there would be no end
					return nil
				}
				return unix.EBUSY
			}, func(err error) bool { return errors.Is(err, unix.EBUSY) })
			if !errors.Is(err, c.end) || !slices.Equal(at, c.want) {
				t.Errorf("%s: %v after tries at %v, want them at %v", name, err, at, c.want)
			}
		})
	}
}

// The error about a queue that does not exist gives the number of each kind.
func TestAbsentQueueTellsTheQueues(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	err := ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "odd", MTU: 1500, NumRxQueues: 3, NumTxQueues: 2}, PeerName: "even"})
	})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	_, err = tryOpen(ns, pool, Config{Interface: "odd", Queue: 3})
	const words = "odd has 3 receive and 2 transmit queues, queue 3 was asked for (see ethtool -l odd)"
	if !errors.Is(err, ErrNoQueue) || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want %q", err, words)
	}
}

// BindAuto avoids zero-copy mode if the driver is not safe in it; a caller that requests it
// explicitly gets it.
func TestModeIsSafe(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	for _, c := range []struct {
		unsafe     bool
		mode, want BindMode
	}{{false, BindAuto, BindAuto}, {true, BindAuto, BindCopy}, {true, BindCopy, BindCopy}, {true, BindZeroCopy, BindZeroCopy}} {
		announcesTwice["veth"] = c.unsafe
		s := &Socket{umem: newUMEM(t, UMEMConfig{Frames: 64}), fd: -1, cfg: Config{Interface: "a", Mode: c.mode}}
		err := ns.Do(func() error { return s.bind(1) })
		delete(announcesTwice, "veth")
		if err == nil || s.mode != c.want {
			t.Errorf("unsafe %v, mode %d: bound with mode %d, %v; want %d", c.unsafe, c.mode, s.mode, err, c.want)
		}
	}
	for driver, want := range map[string]BindMode{"igb": BindCopy, "virtio_net": BindCopy, "ice": BindAuto, "": BindAuto} {
		if got := safeMode(driver); got != want {
			t.Errorf("the safe mode of %q is %d, want %d", driver, got, want)
		}
	}
}
