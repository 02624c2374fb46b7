// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

func openAll(t *testing.T, ns *testbed.Namespace, cfg GroupConfig) *Group {
	t.Helper()
	var g *Group
	err := ns.Do(func() (err error) {
		g, err = OpenAll("b", cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// runGroup runs a group until the test ends it, and returns Run's result.
func runGroup(g *Group, loop func(*Socket) error) (stop func(), done <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error, 1)
	go func() { errs <- g.Run(ctx, loop) }()
	return cancel, errs
}

func waitRun(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
		return nil
	}
}

// until waits for a condition and repeatedly sends packets: those sent before a link is up are
// lost.
func until(t *testing.T, what string, try func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !try(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came: ", what)
		}
	}
}

// Interfaces that go down or are replaced get their program back, on all queues, without the loops'
// help.
func TestGroupRecovers(t *testing.T) {
	pair := testbed.VethConfig{Queues: 2}
	ns := newNet(t, pair)
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 256})
	if n := len(g.Sockets()); n != 2 {
		t.Fatalf("%d sockets on two queues", n)
	}
	var came [2]atomic.Int64
	stop, done := runGroup(g, Serve(func(s *Socket, packets []Desc) error {
		came[s.Info().Queue].Add(int64(len(packets)))
		return nil
	}))
	defer stop()
	u := newUMEM(t, UMEMConfig{})
	arrive := func(what string) {
		t.Helper()
		for q := range came {
			tx := open(t, ns, newPool(t, u, 64), Config{Interface: "a", Queue: q, RxFrames: -1})
			before := came[q].Load()
			until(t, what, func() bool {
				transmit(t, tx, newPackets(t, tx, 1, 1, 100))
				_ = tx.pool.Free(tx.lent(nil, stateYours)...)
				return came[q].Load() > before
			})
			if err := tx.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	arrive("packets")
	down := func(up bool) {
		t.Helper()
		if err := ns.SetUp("b", up); err != nil {
			t.Fatal(err)
		}
	}
	down(false)
	time.Sleep(2 * linkCheck) // usually long enough for the loops to notice
	down(true)
	arrive("packets after the link came back")
	if err := ns.Delete("b"); err != nil {
		t.Fatal(err)
	}
	if err := ns.Veth(pair); err != nil {
		t.Fatal(err)
	}
	until(t, "the program", func() bool { return attachedID(t, ns) != 0 })
	arrive("packets on the new interface")
	stop()
	if err := waitRun(t, done); err != nil {
		t.Error(err)
	}
	if id := attachedID(t, ns); id != 0 {
		t.Errorf("program %d is still there", id)
	}
	st, err := g.Snapshot()
	if want := uint64(came[0].Load() + came[1].Load()); err != nil || st.RxReceived != want {
		t.Errorf("the snapshot has %d packets, %v, want %d", st.RxReceived, err, want)
	}
}

// The program is also attached again if the index does not show its loss: on a new interface with
// the index of the former one, and after another process has detached the link. It is not touched
// while it is attached.
func TestGroupAsksTheLink(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 64})
	var came atomic.Int64
	stop, done := runGroup(g, Serve(func(_ *Socket, packets []Desc) error { came.Add(int64(len(packets))); return nil }))
	defer stop()
	index := g.Sockets()[0].Info().Ifindex
	arrive := func(what string) (program uint32) {
		t.Helper()
		until(t, "the program "+what, func() bool { program = attachedID(t, ns); return program != 0 })
		tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
		before := came.Load()
		until(t, "packets "+what, func() bool {
			if err := tx.Pool().Free(transmit(t, tx, newPackets(t, tx, 1, 1, 100))...); err != nil {
				t.Fatal(err)
			}
			return came.Load() > before
		})
		if err := tx.Close(); err != nil {
			t.Fatal(err)
		}
		return program
	}
	first := arrive("at first")
	for _, ifindex := range []int{0, index} {
		if err := g.reattach(ifindex); err != nil {
			t.Fatal(err)
		}
	}
	if now := attachedID(t, ns); now != first {
		t.Errorf("program %d took the place of %d for nothing", now, first)
	}
	if err := ns.Delete("b"); err != nil {
		t.Fatal(err)
	}
	err := ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = "b", index
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "a"}), ns.SetUp("a", true), ns.SetUp("b", true))
	})
	if err != nil {
		t.Fatal(err)
	}
	second := arrive("on an interface of the same index")
	if now := g.Sockets()[0].Info().Ifindex; now != index {
		t.Fatalf("the interface has index %d, not %d", now, index)
	}
	detach := func(then func()) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if err := g.program.hook.link.Detach(); err != nil {
			t.Fatal(err)
		}
		then()
	}
	detach(func() {})
	if third := arrive("after it was detached"); third == second {
		t.Errorf("the link was not detached")
	}
	// Another program is not replaced, and Run reports it.
	detach(func() { attach(t, ns, AttachConfig{Interface: "b", Program: passProgram(t)}) })
	wantErr(t, waitRun(t, done), ErrProgramAttached)
}

// A loop that could not send in zero-copy mode, because another process had detached the program,
// is called again when that is back.
func TestGroupRecoversItsProgram(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 64})
	calls := 0
	_, done := runGroup(g, func(s *Socket) error {
		if calls++; calls == 1 {
			g.mu.Lock() // the Group attaches it again at once
			defer g.mu.Unlock()
			return errors.Join(g.program.hook.link.Detach(), ErrNoProgram)
		}
		if attachedID(t, ns) == 0 {
			t.Error("called again without the program")
		}
		return nil
	})
	if err := waitRun(t, done); calls != 2 || err != nil {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// A Group that needs descriptors when there are none, because its program was detached or its
// interface replaced, waits for some.
func TestGroupWaitsForDescriptors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 64})
	stop, done := runGroup(g, Serve(func(*Socket, []Desc) error { return nil }))
	defer stop()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	limit := func(n uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(old.Cur)
	for name, lose := range map[string]func() error{
		"program": func() error {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.program.hook.link.Detach()
		},
		"interface": func() error { return errors.Join(ns.Delete("b"), ns.Veth(testbed.VethConfig{})) },
	} {
		if err := lose(); err != nil {
			t.Fatal(name, err)
		}
		limit(3)
		time.Sleep(programCheck * 3 / 2)
		limit(old.Cur)
		until(t, "the program", func() bool { return attachedID(t, ns) != 0 })
		select {
		case err := <-done:
			t.Fatalf("%s: Run ended: %v", name, err)
		default:
		}
	}
	stop()
	if err := waitRun(t, done); err != nil {
		t.Error(err)
	}
}

// A new interface gets the program when it is up: before that it may not be fully configured.
func TestGroupWaitsForASetInterface(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 64})
	stop, done := runGroup(g, Serve(func(*Socket, []Desc) error { return nil }))
	defer stop()
	err := errors.Join(ns.Delete("b"), ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "b", 9000 // for which there is no native mode
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "a"})
	}))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(programCheck * 3 / 2)
	err = ns.Do(func() error {
		for _, name := range []string{"a", "b"} {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetMTU(l, 1500)
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(ns.SetUp("a", true), ns.SetUp("b", true))
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the program", func() bool { return attachedID(t, ns) != 0 })
	g.mu.Lock()
	mode := g.program.Mode()
	g.mu.Unlock()
	if mode != AttachNative {
		t.Errorf("the program is in %v mode", mode)
	}
	stop()
	if err := waitRun(t, done); err != nil {
		t.Error(err)
	}
}

// The program is detached before the sockets close: packets that arrive while one of them is
// closing go to the kernel.
func TestGroupClosesItsProgramFirst(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchUDP(9), Frames: 64})
	if err := g.Sockets()[0].enterHalves(both); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- g.Close() }()
	until(t, "the program's end", func() bool { return attachedID(t, ns) == 0 })
	g.Sockets()[0].leaveHalves(both)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A net.ErrClosed that is not from the socket is an ordinary error.
func TestGroupTellsWhatElseIsClosed(t *testing.T) {
	g := openAll(t, newNet(t, testbed.VethConfig{}), GroupConfig{Match: MatchUDP(9), Frames: 64})
	wantErr(t, g.Run(t.Context(), func(*Socket) error { return net.ErrClosed }), net.ErrClosed)
}

// The first loop that fails ends the others, and Run returns its error.
func TestGroupEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		end  func(g *Group, stop func())
		want error
	}{
		"by an error": {nil, broken},
		"by ctx":      {func(_ *Group, stop func()) { stop() }, nil},
		"by Close": {func(g *Group, _ func()) {
			if err := g.Close(); err != nil {
				panic(err)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNet(t, testbed.VethConfig{Queues: 2})
			g := openAll(t, ns, GroupConfig{Match: MatchUDP(9), Frames: 64})
			var ended atomic.Int64
			stop, done := runGroup(g, func(s *Socket) error {
				defer ended.Add(1)
				if s.Info().Queue == 1 && c.end == nil {
					return broken
				}
				return Serve(func(*Socket, []Desc) error { return nil })(s)
			})
			defer stop()
			if c.end != nil {
				until(t, "the loops", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.running })
				c.end(g, stop)
			}
			if err := waitRun(t, done); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("Run returned %v, want %v", err, c.want)
			}
			if n := ended.Load(); n != 2 {
				t.Errorf("%d loops ended", n)
			}
			wantErr(t, g.Run(t.Context(), nil), ErrInUse)
			if closed := name == "by Close"; g.umem.closed != closed {
				t.Errorf("after Run the memory is freed: %v, want %v: it goes with the later one of Run and Close", g.umem.closed, closed)
			}
			if err := g.Close(); err != nil || !g.umem.closed {
				t.Errorf("after Close the memory is freed: %v, %v", g.umem.closed, err)
			}
			if id := attachedID(t, ns); id != 0 {
				t.Errorf("program %d is still there", id)
			}
		})
	}
}

// A Run that is refused changes nothing for the one that has the sockets: after a Close the memory
// stays until its loops have ended.
func TestRefusedRunLeavesTheMemory(t *testing.T) {
	g := openAll(t, newNet(t, testbed.VethConfig{}), GroupConfig{Match: MatchUDP(9), Frames: 64})
	runs, goOn := make(chan bool), make(chan bool)
	stop, done := runGroup(g, func(*Socket) error {
		runs <- true
		<-goOn
		return nil
	})
	defer stop()
	<-runs
	wantErr(t, g.Run(t.Context(), nil), ErrInUse)
	if err := g.Close(); err != nil || g.umem.closed {
		t.Errorf("Close: %v; the memory of a loop is freed: %v", err, g.umem.closed)
	}
	close(goOn)
	if err := waitRun(t, done); err != nil || !g.umem.closed {
		t.Errorf("Run: %v; its memory is freed: %v", err, g.umem.closed)
	}
}

// A socket of a group may be closed concurrently with the group. The test needs the race detector.
func TestSocketIsClosedBesideItsGroup(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	for range 10 {
		var g *Group
		err := ns.Do(func() (err error) {
			g, err = OpenAll("b", GroupConfig{Match: MatchUDP(1), Frames: 64})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- g.Sockets()[0].Close() }()
		if err := errors.Join(g.Close(), <-closed, g.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// When a loop returns nil, its queue goes to the kernel while others continue: a socket without a
// reader takes no packets.
func TestGroupLeavesQueuesToTheKernel(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 64})
	var came atomic.Int64
	serve := Serve(func(_ *Socket, packets []Desc) error { came.Add(int64(len(packets))); return nil })
	stop, done := runGroup(g, func(s *Socket) error {
		if s.Info().Queue == 0 {
			return nil
		}
		return serve(s)
	})
	defer stop()
	until(t, "the end of the first loop", func() bool { return g.Sockets()[0].FD() < 0 })
	tap := openKernelTap(t, ns, "b")
	u := newUMEM(t, UMEMConfig{})
	for q, arrived := range []func() bool{
		func() bool { _, err := packetNumber(tap.next(t)); return err == nil },
		func() bool { return came.Load() > 0 },
	} {
		tx := open(t, ns, newPool(t, u, 64), Config{Interface: "a", Queue: q, RxFrames: -1})
		until(t, fmt.Sprint("packets of queue ", q), func() bool {
			if err := tx.Pool().Free(transmit(t, tx, newPackets(t, tx, 1, 1, 100))...); err != nil {
				t.Fatal(err)
			}
			return arrived()
		})
	}
	stop()
	if err := waitRun(t, done); err != nil {
		t.Error(err)
	}
}

// While there is no interface, the loops report it and Run does not; the program returns with the
// interface, but not after Close.
func TestGroupKeepsItsProgram(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchUDP(9), Frames: 64})
	if err := ns.Delete("b"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kept := make(chan error, 1)
	go func() { kept <- g.keepProgram(ctx) }()
	select {
	case err := <-kept:
		t.Errorf("ended with %v", err)
	case <-time.After(programCheck * 3 / 2): // after the first look
		cancel()
		if err := <-kept; err != nil {
			t.Errorf("ended with %v", err)
		}
	}
	if err := errors.Join(ns.Veth(testbed.VethConfig{}), g.reattach(0)); err != nil || attachedID(t, ns) == 0 {
		t.Errorf("no program on the new interface, %v", err)
	}
	if err := errors.Join(g.closeSockets(), g.reattach(0)); err != nil || attachedID(t, ns) != 0 {
		t.Errorf("a program on the interface of a closed group, %v", err)
	}
}
