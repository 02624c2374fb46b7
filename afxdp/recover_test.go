// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

func TestLinkDownAndUp(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	transmit(t, p.a, newPackets(t, p.a, 0, 10, 190))
	receive(t, p.b, 10)

	if err := p.ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	sent := newPackets(t, p.a, 100, 10, 190)
	if n, err := p.a.Send(sent); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	wantErr(t, p.a.Kick(), ErrLinkDown)
	// A sleeping Poll detects it by itself.
	_, err := p.a.Poll(EventRx, eventLimit)
	wantErr(t, err, ErrLinkDown)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err = p.a.Recover(ctx)
	wantErr(t, err, context.DeadlineExceeded)
	wantErr(t, err, ErrLinkDown)

	up := make(chan error)
	go func() { up <- p.ns.SetUp("a", true) }()
	if err := p.a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-up; err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, p.ns)
	// Queued packets are sent now, and more can follow.
	transmit(t, p.a, newPackets(t, p.a, 110, 10, 190))
	if diff := cmp.Diff(upTo(100, 20), receive(t, p.b, 20)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReceiverLinkDownAndUp(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	if err := p.ns.SetUp("b", false); err != nil {
		t.Fatal(err)
	}
	// Short timeouts must not hide it.
	var err error
	for start := time.Now(); err == nil && time.Since(start) < eventLimit; {
		_, err = p.b.Poll(EventRx, time.Millisecond)
	}
	wantErr(t, err, ErrLinkDown)
	if err := p.ns.SetUp("b", true); err != nil {
		t.Fatal(err)
	}
	if err := p.b.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, p.ns)
	transmit(t, p.a, newPackets(t, p.a, 0, 10, 190))
	receive(t, p.b, 10)
}

// waitCarrier waits until the kernel's link watch lets interface a send again:
// it is notified of a peer's return asynchronously.
func waitCarrier(t testing.TB, ns *testbed.Namespace) {
	t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(5 * time.Millisecond) {
		running, err := ns.Running("a")
		if err != nil {
			t.Fatal(err)
		}
		if running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a does not come up")
		}
	}
}

func TestReopenWaitsForTheLink(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	if err := ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := ns.Do(func() error { return s.Reopen(ctx) })
	wantErr(t, err, ErrLinkDown)
	wantErr(t, err, context.DeadlineExceeded)
	wantErr(t, s.Kick(), ErrInterfaceGone) // there is no socket
	up := make(chan error)
	go func() { up <- ns.SetUp("a", true) }()
	if err := ns.Do(func() error { return s.Reopen(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if err := <-up; err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, ns)
	transmit(t, s, newPackets(t, s, 0, 10, 190))
}

func TestInterfaceVanishesAndReturns(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	transmit(t, p.a, newPackets(t, p.a, 0, 10, 190))
	receive(t, p.b, 10)
	flying := newPackets(t, p.a, 10, 3, 190)
	if n, err := p.a.Send(flying); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if err := p.ns.Delete("a"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Socket{p.a, p.b} {
		_, err := s.Poll(EventRx, eventLimit)
		wantErr(t, err, ErrInterfaceGone)
	}
	wantErr(t, p.a.Kick(), ErrInterfaceGone)

	// While there is no interface, recovering fails at its limit and leaves a usable socket.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	wantErr(t, p.ns.Do(func() error { return p.a.Recover(ctx) }), context.DeadlineExceeded)
	wantErr(t, p.a.Kick(), ErrInterfaceGone)
	if n, err := p.a.Receive(make([]Desc, 1)); n != 0 || err != nil {
		t.Error(n, err)
	}

	wantErr(t, p.ns.Do(p.prog.Reattach), ErrInterfaceGone)

	created := make(chan error)
	go func() { created <- p.ns.Veth(testbed.VethConfig{}) }()
	if err := p.ns.Do(func() error { return p.a.Recover(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	err := p.ns.Do(func() error {
		if err := p.prog.Reattach(); err != nil {
			return err
		}
		return p.b.Recover(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
	// The frames whose fate is unknown come back, with their bytes.
	got := make([]Frame, 8)
	n, err := p.a.Completed(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(frameNumbers(flying), sortFrames(got[:n])); diff != "" {
		t.Errorf("returned frames (-want +got):\n%s", diff)
	}
	if p.a.InFlight() != 0 {
		t.Errorf("%d in flight", p.a.InFlight())
	}
	waitCarrier(t, p.ns)
	transmit(t, p.a, flying)
	if diff := cmp.Diff(upTo(10, 3), receive(t, p.b, 3)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	st, err := p.b.Stats()
	if err != nil || st.RxReceived != 13 {
		t.Errorf("counters did not survive: %+v, %v", st, err)
	}
}

func TestReopenKeepsFrames(t *testing.T) {
	p := newPair(t, UMEMConfig{Frames: 256}, Config{})
	for i := range uint64(3) {
		sent := newPackets(t, p.a, i*10, 10, 190)
		if err := p.a.Pool().Free(transmit(t, p.a, sent)...); err != nil {
			t.Fatal(err)
		}
		receive(t, p.b, 10)
		err := p.ns.Do(func() error {
			if err := p.a.Reopen(t.Context()); err != nil {
				return err
			}
			return p.b.Reopen(t.Context())
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := p.a.Pool().Available(); n != 128 {
		t.Errorf("%d frames are free, want 128: the other half is in the fill ring", n)
	}
}

// Frames that were lent beyond Config.RxFrames go to the pool after Reopen.
func TestReopenReturnsSpareFrames(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	s := open(t, ns, newPool(t, u, 0), Config{Interface: "a", RxFrames: 16})
	if n, err := s.Refill(20); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	for range 2 {
		if err := ns.Do(func() error { return s.Reopen(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Census{Free: 48, Filling: 16}, u.Census()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if rings, err := s.Rings(); err != nil || rings.Fill != 16 || s.Pool().Available() != 48 {
			t.Errorf("%d frames in the fill ring and %d free, want 16 and 48, %v", rings.Fill, s.Pool().Available(), err)
		}
	}
}

// Close interrupts a Recover that waits.
func TestCloseWhileRecovering(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	if err := p.ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	go func() { errs <- p.a.Recover(context.Background()) }()
	for p.a.in.gate.state.Load()&gateBusy == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err == nil {
		t.Error("Recover succeeded on a closed socket")
	}
}

// newBusyNet returns a socket that has lost its queue: the interface was down when it was reopened,
// and another socket has the queue since. Its frames to be filled are 16 of 64. In flight is one.
func newBusyNet(t *testing.T, cfg Config) (ns *testbed.Namespace, s *Socket) {
	t.Helper()
	ns = newNet(t, testbed.VethConfig{})
	cfg.Interface, cfg.RxFrames = "a", 16
	s = open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), cfg)
	if n, err := s.Send(newPackets(t, s, 0, 1, 60)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, s.Reopen(ctx), ErrLinkDown)
	if err := ns.SetUp("a", true); err != nil {
		t.Fatal(err)
	}
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a"})
	return ns, s
}

// A Reopen that fails in copy mode leaves no frame in an unmapped fill ring.
func TestFailedReopenReturnsFrames(t *testing.T) {
	ns, s := newBusyNet(t, Config{BindTimeout: time.Millisecond})
	wantErr(t, ns.Do(func() error { return s.Reopen(t.Context()) }), ErrQueueBusy)
	if diff := cmp.Diff(Census{Free: 63, InFlight: 1}, s.UMEM().Census()); diff != "" || s.Pool().Available() != 63 {
		t.Errorf("%d frames are free (-want +got):\n%s", s.Pool().Available(), diff)
	}
}

// Close ends a Reopen that waits for a busy queue.
func TestCloseWhileTheQueueIsBusy(t *testing.T) {
	ns, s := newBusyNet(t, Config{BindTimeout: time.Minute})
	start, reopened := time.Now(), make(chan error, 1)
	go func() { reopened <- ns.Do(func() error { return s.Reopen(context.Background()) }) }()
	until(t, "Reopen", func() bool { return s.in.gate.state.Load()&gateBusy != 0 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, <-reopened, ErrQueueBusy)
	if waited := time.Since(start); waited > 30*time.Second {
		t.Errorf("Close waited for %v", waited)
	}
}

// A Reopen that fails while the device may still have the frames returns its error at once: the
// frames can wait.
func TestFailedReopenLeavesFramesToTheDevice(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", RxFrames: 16})
	s.direct = true // as in zero-copy mode
	reopen := func() error {
		err := s.Reopen(context.Background())
		if errors.Is(err, ErrStillLent) {
			t.Errorf("the frames were waited for: %v", err)
		}
		return err
	}
	refused(t, ns, "bind", unix.EDOM, "afxdp: bind to queue 0 of a: ", reopen, refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EDOM})
	if diff := cmp.Diff(Census{Free: 48, Filling: 16}, s.UMEM().Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The backoff for a full driver is reset when the socket is reopened: the next packet is offered at
// once.
func TestReopenedSocketSends(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", RxFrames: -1})
	sent := newPackets(t, s, 0, 3, 60)
	if n, err := s.Send(sent[:2]); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	s.holdAbove, s.holdKicks = 0, maxHold
	if err := ns.Do(func() error { return s.Reopen(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Send(sent[2:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := s.Kick(); err != nil || s.Backlog() != 0 {
		t.Errorf("backlog %d, %v", s.Backlog(), err)
	}
}
