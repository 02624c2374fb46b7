// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Departures are kept until the queue has a new socket or the UMEM is closed.
func TestDepartures(t *testing.T) {
	if len(departures.of) != 0 {
		t.Fatalf("departures %v before the test", departures.of)
	}
	a, b := &UMEM{}, &UMEM{}
	one, two, three := queueID{ifindex: 1}, queueID{ifindex: 1, queue: 1}, queueID{ifindex: 2}
	all := []*departure{depart(one, nil, a), depart(one, nil, b), depart(two, nil, a), depart(three, nil, b)}
	check := func(when string, waiting int, gone ...bool) {
		t.Helper()
		n := 0
		for q, list := range departures.of {
			if n += len(list); len(list) == 0 {
				t.Errorf("%s: nothing waits for %v", when, q)
			}
		}
		for i, want := range gone {
			if all[i].gone.Load() != want {
				t.Errorf("%s: departure %d is over: %v", when, i, !want)
			}
		}
		if n != waiting {
			t.Errorf("%s: %d departures wait, want %d", when, n, waiting)
		}
	}
	check("at first", 4, false, false, false, false)
	forgetDepartures(a)
	check("without one UMEM", 2, false, false, false, false)
	departed(one)
	check("with a new socket", 1, false, true, false, false)
	if err := all[1].awaitRelease(context.Background()); err != nil {
		t.Error(err)
	}
	forgetDepartures(b)
	check("without both", 0, false, true, false, false)
}

// The wait of Reclaim, and its error afterwards.
func TestReclaimNamesItsQueue(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", Queue: 1, BindTimeout: time.Millisecond})
	release := lingering(t, s)
	index := s.Info().Ifindex
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Reclaim()
	want := fmt.Sprintf("queue 1 of interface %d is not free yet", index)
	if !errors.Is(err, ErrStillLent) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	release()
	s.cfg.BindTimeout = eventLimit
	if _, err := s.Reclaim(); err != nil {
		t.Error(err)
	}
	if len(departures.of) != 0 {
		t.Errorf("departures %v", departures.of)
	}
}

// Without the kernel's socket every method fails.
func TestDisconnected(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", RxFrames: -1, Mode: BindCopy})
	if s.FD() <= 2 || s.Info().Interface != "a" || s.Info().Queue != 0 || s.Info().MTU != 1500 || s.Info().BusyPoll || s.Info().SharedUMEM {
		t.Errorf("descriptor %d, %+v", s.FD(), s.Info())
	}
	s.rxSkip = true
	if err := s.teardown(); err != nil {
		t.Fatal(err)
	}
	if s.FD() != -1 || s.rxSkip || s.bound || s.registered || len(s.mappings) != 0 || s.left != nil {
		t.Errorf("descriptor %d, skip %v, bound %v, registered %v, %d mappings", s.FD(), s.rxSkip, s.bound, s.registered, len(s.mappings))
	}
	f, _ := s.Pool().Alloc()
	desc := []Desc{{Frame: f, Off: 256, Len: 60}}
	for name, call := range map[string]func() (int, error){
		"Send":      func() (int, error) { return s.Send(desc) },
		"Receive":   func() (int, error) { return s.Receive(desc) },
		"Completed": func() (int, error) { return s.Completed(make([]Frame, 1)) },
		"Fill":      func() (int, error) { return s.Fill([]Frame{f}) },
		"Refill":    func() (int, error) { return s.Refill(1) },
		"Backlog":   func() (int, error) { return s.Backlog(), nil },
	} {
		if n, err := call(); n != 0 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	for name, call := range map[string]func() error{
		"Kick": s.Kick,
		"Poll": func() error { _, err := s.Poll(EventRx, time.Minute); return err },
	} {
		if err := call(); !errors.Is(err, ErrInterfaceGone) {
			t.Errorf("%s: %v, want ErrInterfaceGone", name, err)
		}
	}
	if rings, err := s.Rings(); rings != (RingCounts{}) || err != nil {
		t.Errorf("rings %+v, %v", rings, err)
	}
	_ = s.in.gate.enterGate()
	if _, err := s.Rings(); !errors.Is(err, ErrConcurrentUse) || s.Backlog() != 0 {
		t.Errorf("beside another goroutine: %v", err)
	}
	s.in.gate.leaveGate()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Pool().Free(f); err != nil {
		t.Error(err)
	}
	if _, err := s.Reclaim(); err != nil {
		t.Error(err)
	}
	if s.id != 0 || s.home != nil || len(s.umem.sockets) != 0 || slices.Contains(s.umem.numbers[:], true) {
		t.Errorf("number %d, namespace %v, %d sockets", s.id, s.home, len(s.umem.sockets))
	}
}

// A socket keeps its number while frames carry it.
func TestNumberStaysWithLentFrames(t *testing.T) {
	for _, state := range []frameState{stateFree, stateYours, stateFilling, stateInFlight} {
		u := newUMEM(t, UMEMConfig{Frames: 4, HugePages: HugePagesOff})
		s := &Socket{umem: u, state: u.state}
		if err := u.register(s); err != nil || s.id != 1 || u.sockets[1] != s {
			t.Fatalf("number %d, %v", s.id, err)
		}
		s.setStates()
		u.state[2] = map[frameState]frameState{stateFilling: s.filling, stateInFlight: s.flying}[state]
		if err := u.unregister(s); err != nil {
			t.Fatal(err)
		}
		if lent := state == stateFilling || state == stateInFlight; u.numbers[1] != lent || (s.id == 1) != lent || len(u.sockets) != 0 {
			t.Errorf("a frame that is %s: number taken %v, socket's %d", stateName(state), u.numbers[1], s.id)
		}
		if err := u.releaseID(s); err != nil || u.numbers[1] || s.id != 0 || s.lent(nil, s.filling) != nil {
			t.Errorf("released: %v, number %d", err, s.id)
		}
	}
	u := newUMEM(t, UMEMConfig{Frames: 1, HugePages: HugePagesOff})
	for i := range maxSockets {
		if err := u.register(&Socket{umem: u}); err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
	}
	if err := u.register(&Socket{umem: u}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "at most 1023 sockets") {
		t.Errorf("one more: %v", err)
	}
	if err := u.Close(); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), ": 1023") {
		t.Errorf("close: %v", err)
	}
	clear(u.sockets)
}

func TestPagesAt(t *testing.T) {
	const smaps = `7f00-7f80 rw-p 00000000 00:00 0
Rss:                   4 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac sd hg
8000-8080 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
9000-9080 rw-p 00000000 00:00 0
Rss:                   4 kB
a000-a080 rw-p 00000000 00:00 0
AnonHugePages:     12288 kB
`
	for address, want := range map[uint64]PageKind{
		0: PagesNormal, 0x7f00: PagesNormal, 0x7f7f: PagesNormal, 0x7fff: PagesNormal,
		0x8000: PagesTransparent, 0x807f: PagesTransparent, 0x8080: PagesNormal,
		0x9000: PagesNormal, 0xa000: PagesTransparent, 0xa080: PagesNormal,
	} {
		if got := pagesAt(strings.NewReader(smaps), address); got != want {
			t.Errorf("%#x lies on %v pages, want %v", address, got, want)
		}
	}
	u := newUMEM(t, UMEMConfig{Frames: 1, HugePages: HugePagesOff})
	u.pages = PagesHuge
	if u.Pages() != PagesHuge {
		t.Errorf("pages are %v", u.Pages())
	}
	for kind, want := range map[PageKind]string{PagesNormal: "normal", PagesTransparent: "transparent huge", PagesHuge: "huge"} {
		if kind.String() != want {
			t.Errorf("%q, want %q", kind, want)
		}
	}
	lo, hi, ok := addressRange("7f0000000000-7f0000200000 rw-p 00000000 00:00 0")
	if lo != 0x7f0000000000 || hi != 0x7f0000200000 || !ok {
		t.Errorf("%#x-%#x, %v", lo, hi, ok)
	}
	for _, line := range []string{"7f00", "7f00-xyz rw", "xyz-7f00 rw"} {
		if _, _, ok := addressRange(line); ok {
			t.Errorf("%q is a range", line)
		}
	}
	mem := make([]byte, 4096)
	for _, node := range []int{-1, 64, 1000} {
		if err := preferNode(mem, node); !errors.Is(err, unix.EINVAL) {
			t.Errorf("node %d: %v", node, err)
		}
	}
	for _, name := range []string{"a/b", ".", "..", "a\x00"} {
		if _, err := numaNode(name); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Positions and entries may be at the end of their mapping.
func TestRingsReachTheEnd(t *testing.T) {
	mem := heap(64 + 16*8)
	for name, off := range map[string]ringOffsets{
		"positions": {Producer: uint64(len(mem)) - 12, Consumer: uint64(len(mem)) - 8, Flags: uint64(len(mem)) - 4, Desc: 0},
		"entries":   {Producer: 0, Consumer: 4, Flags: 8, Desc: 64},
	} {
		r, err := newDescRing(mem, off, 8)
		if err != nil || len(r.descs) != 8 || r.size != 8 {
			t.Fatalf("%s: %v, %d entries", name, err, len(r.descs))
		}
		r.producer.Store(7)
		r.consumer.Store(5)
		again, err := newAddrRing(mem, off, 16)
		if err != nil || again.prod != 7 || again.cons != 5 || len(again.addrs) != 16 || again.size != 16 {
			t.Errorf("%s: %v, positions %d and %d of %d", name, err, again.prod, again.cons, again.size)
		}
		r.producer.Store(0)
		r.consumer.Store(0)
	}
	for want, off := range map[string]ringOffsets{
		"a ring offset of 2 in a mapping of 192 bytes":  {Flags: 2},
		"ring entries at 72 in a mapping of 192 bytes":  {Desc: 72},
		"a ring offset of 192 in a mapping of 192 byte": {Consumer: 192},
	} {
		if _, err := newDescRing(mem, off, 8); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
