// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

func TestPacketsArriveInOrder(t *testing.T) {
	for _, length := range []int{60, 190, 1414, 1514} {
		p := newPair(t, UMEMConfig{Headroom: 2}, Config{})
		// More than a call's default budget, and more than the ring of a veth.
		const n = 200
		sent := newPackets(t, p.a, 1000, n, length)
		done := transmit(t, p.a, sent)
		if diff := cmp.Diff(frameNumbers(sent), sortFrames(done)); diff != "" {
			t.Errorf("completed frames (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(upTo(1000, n), receive(t, p.b, n)); diff != "" {
			t.Errorf("length %d (-want +got):\n%s", length, diff)
		}
	}
}

func TestSameChunkIsSentAgain(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	sent := newPackets(t, p.a, 7, 3, 190)
	for range 4 {
		transmit(t, p.a, sent)
		if diff := cmp.Diff(upTo(7, 3), receive(t, p.b, 3)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	if err := p.a.Pool().Free(frameNumbers(sent)...); err != nil {
		t.Fatal(err)
	}
}

func TestFramesComeRound(t *testing.T) {
	// Far more packets than frames: a leak of frames would stop the traffic.
	p := newPair(t, UMEMConfig{Frames: 64}, Config{RxRing: 64, TxRing: 64, FillRing: 64, CompletionRing: 64})
	for round := range uint64(100) {
		sent := newPackets(t, p.a, round*16, 16, 300)
		if err := p.a.Pool().Free(transmit(t, p.a, sent)...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(upTo(round*16, 16), receive(t, p.b, 16)); diff != "" {
			t.Fatalf("round %d (-want +got):\n%s", round, diff)
		}
	}
	st, err := p.b.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if st.RxReceived != 1600 || st.BadDescs != 0 || st.Kernel.RxDropped != 0 || st.Kernel.RxInvalidDescs != 0 {
		t.Errorf("unexpected statistics: %+v", st)
	}
}

func TestReceiveAlignment(t *testing.T) {
	p := newPair(t, UMEMConfig{Headroom: 22}, Config{})
	transmit(t, p.a, newPackets(t, p.a, 1, 1, 100))
	if ev, err := p.b.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	var d [1]Desc
	if n, err := p.b.Receive(d[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if want := 256 + 22; int(d[0].Off) != want || p.b.UMEM().RxOffset() != want {
		t.Errorf("packet at offset %d, RxOffset %d, want %d", d[0].Off, p.b.UMEM().RxOffset(), want)
	}
}

func TestTxBudgetIsRaised(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	if got := p.a.Info().TxBudget; got != defaultTxBudget && got != kernelTxBudget {
		t.Fatalf("TX budget %d is neither what was asked for nor the kernel's", got)
	}
	sent := newPackets(t, p.a, 0, 200, 60)
	if n, err := p.a.Send(sent); n != len(sent) || err != nil {
		t.Fatal(n, err)
	}
	if err := p.a.Kick(); err != nil {
		t.Fatal(err)
	}
	if p.a.Backlog() != 0 {
		t.Errorf("backlog of %d after a kick", p.a.Backlog())
	}
	st, err := p.a.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(1); p.a.Info().TxBudget == defaultTxBudget && st.TxKicks != want {
		t.Errorf("%d system calls for 200 packets, want %d", st.TxKicks, want)
	}
}

// With the kernel's default budget a kick repeats the call until all are taken.
func TestSmallTxBudgetDoesNotStall(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{TxBudget: kernelTxBudget})
	sent := newPackets(t, p.a, 0, 200, 60)
	if n, err := p.a.Send(sent); n != len(sent) || err != nil {
		t.Fatal(n, err)
	}
	if err := p.a.Kick(); err != nil {
		t.Fatal(err)
	}
	if p.a.Backlog() != 0 {
		t.Errorf("backlog of %d after a kick", p.a.Backlog())
	}
	if diff := cmp.Diff(upTo(0, 200), receive(t, p.b, 200)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestModeReadBack(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	if p.a.Info().ZeroCopy {
		t.Error("veth reports zero-copy")
	}
	if p.prog.Mode() != AttachNative {
		t.Errorf("veth's program runs in %v mode, want native", p.prog.Mode())
	}
	p.a.Close()
	_, err := tryOpen(p.ns, p.a.Pool(), Config{Interface: "a", Mode: BindZeroCopy})
	var feature *FeatureError
	if !errors.As(err, &feature) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("zero-copy on veth: error is %v, want a FeatureError", err)
	}
}

func TestQueueBusy(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u1, u2 := newUMEM(t, UMEMConfig{}), newUMEM(t, UMEMConfig{})
	p1, p2 := newPool(t, u1, 2048), newPool(t, u2, 0)
	s := open(t, ns, p1, Config{Interface: "a"})
	free := p2.Available()
	_, err := tryOpen(ns, p2, Config{Interface: "a", BindTimeout: 30 * time.Millisecond})
	wantErr(t, err, ErrQueueBusy)
	if p2.Available() != free {
		t.Errorf("failed Open kept %d frames", free-p2.Available())
	}
	// The same UMEM makes no difference.
	_, err = tryOpen(ns, newPool(t, u1, 0), Config{Interface: "a", BindTimeout: time.Minute})
	wantErr(t, err, ErrQueueBusy)
	if !strings.Contains(err.Error(), "another socket of the UMEM has it") {
		t.Errorf("error %q says nothing of the UMEM: it was waited for", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The kernel releases the queue some time after Close; Open waits for it.
	open(t, ns, p2, Config{Interface: "a"})
}

func TestRebindAtOnce(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	u := newUMEM(t, UMEMConfig{})
	pool := newPool(t, u, 0)
	for i := range 10 {
		s, err := tryOpen(ns, pool, Config{Interface: "b", XSKMap: prog.XSKMap()})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reclaim(); err != nil {
			t.Fatal(err)
		}
		if pool.Available() != u.Frames() {
			t.Fatalf("round %d: %d of %d frames came back", i, pool.Available(), u.Frames())
		}
	}
}

func TestReclaimReturnsFramesInFlight(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	sent := newPackets(t, p.a, 0, 5, 60)
	if n, err := p.a.Send(sent); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := p.a.Reclaim(); !errors.Is(err, ErrInUse) {
		t.Errorf("Reclaim of an open socket: %v", err)
	}
	if err := p.a.Close(); err != nil {
		t.Fatal(err)
	}
	flying, err := p.a.Reclaim()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(frameNumbers(sent), flying); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := p.a.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
	if err := p.a.Pool().Free(flying...); err != nil {
		t.Error(err)
	}
	if p.a.Pool().Available() != p.a.UMEM().Frames() {
		t.Errorf("%d of %d frames are free", p.a.Pool().Available(), p.a.UMEM().Frames())
	}
}

func TestMTULargerThanFrame(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{MTU: 3000})
	_, err := tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	wantErr(t, err, ErrFrameTooSmall)
	_, err = tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", MaxPacket: 1793})
	wantErr(t, err, ErrFrameTooSmall)
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{FrameSize: 4096}), 0), Config{Interface: "a"})

	// An Ethernet header and a VLAN tag come on top of the MTU: 18 bytes of the 1792 of a frame.
	ns = newNet(t, testbed.VethConfig{MTU: 1775})
	_, err = tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	wantErr(t, err, ErrFrameTooSmall)
	ns = newNet(t, testbed.VethConfig{MTU: 1774})
	open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
}

// Only received packets have to fit, and their limit is known.
func TestSmallPacketsOnAJumboInterface(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{MTU: 9000})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{FrameSize: 4096}), 0), Config{Interface: "a", RxFrames: -1})
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: prog.XSKMap(), MaxPacket: 1518})
	transmit(t, a, newPackets(t, a, 0, 5, 1518))
	transmit(t, a, newPackets(t, a, 5, 3, 3000))
	transmit(t, a, newPackets(t, a, 8, 5, 60))
	if diff := cmp.Diff([]uint64{0, 1, 2, 3, 4, 8, 9, 10, 11, 12}, receive(t, b, 10)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if st, err := b.Stats(); err != nil || st.Kernel.RxDropped != 3 {
		t.Errorf("%d packets dropped, want 3, %v", st.Kernel.RxDropped, err)
	}
}

func TestUMEMCloseRefusesOpenSockets(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	err := p.a.UMEM().Close()
	wantErr(t, err, ErrInUse)
	if !strings.Contains(err.Error(), "sockets of the UMEM are open") {
		t.Error(err)
	}
}

func TestPinThread(t *testing.T) {
	unpin, err := PinThread(0)
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	if set.Count() != 1 || !set.IsSet(0) {
		t.Errorf("thread may run on %d CPUs", set.Count())
	}
	if err := unpin(); err != nil {
		t.Fatal(err)
	}
	_, err = PinThread(1000)
	wantErr(t, err, ErrConfig)
}
