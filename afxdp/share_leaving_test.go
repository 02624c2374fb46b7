// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Frames whose completion may still come on the queue, or that the kernel may have taken, stay lent
// until the last socket has left it.
func TestShareQueueKeepsWhatMayComplete(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 128})
	var socks [2]*Socket
	for i := range socks {
		socks[i] = open(t, ns, newPool(t, u, 64), Config{Interface: "a", ShareQueue: true, RxFrames: 16, BindTimeout: 50 * time.Millisecond})
	}
	sent := newPackets(t, socks[0], 0, 4, 60)
	if n, err := socks[0].Send(sent); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if err := ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	if err := socks[0].Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		flying, err := socks[0].Reclaim()
		wantErr(t, err, ErrStillLent)
		if diff := cmp.Diff(Census{Free: 92, Filling: 32, InFlight: 4}, u.Census()); diff != "" || len(flying) > 0 {
			t.Errorf("%v came back (-want +got):\n%s", flying, diff)
		}
	}
	if err := socks[1].Close(); err != nil {
		t.Fatal(err)
	}
	flying, err := socks[0].Reclaim()
	if diff := cmp.Diff(frameNumbers(sent), flying); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := socks[1].Reclaim(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(Census{Free: 124, Yours: 4}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if have := [2]int{socks[0].Pool().Available(), socks[1].Pool().Available()}; have != [2]int{44, 80} {
		t.Errorf("%v frames are free, want those of the fill ring with the last socket", have)
	}
}

// Packets that a socket has sent or not yet received when it is closed are not lost to the others.
func TestShareQueueSettles(t *testing.T) {
	n := newSharedNet(t, 1024, 2)
	first := newMate(t, open(t, n.ns, newPool(t, n.umem, 512), n.config(0)), 0)
	second := newMate(t, open(t, n.ns, newPool(t, n.umem, 512), n.config(1)), 1)
	for _, m := range []*mate{first, second} {
		other := second
		if m == second {
			other = first
		}
		before, err := other.s.Rings()
		if err != nil {
			t.Fatal(err)
		}
		for m.sent < 30 {
			n := m.pool.AllocBatch(m.frames[:30])
			for i, f := range m.frames[:n] {
				m.descs[i] = Desc{Frame: f, Off: 256, Len: 100}
				p := m.s.UMEM().Packet(m.descs[i])
				fillPacket(p, uint64(i))
				if err := m.etherType(p, 0, m.index); err != nil {
					t.Fatal(err)
				}
			}
			if taken, err := m.s.Send(m.descs[:n]); taken != 30 || err != nil {
				t.Fatal(taken, err)
			}
			m.sent += 30
			if err := m.s.Kick(); err != nil {
				t.Fatal(err)
			}
		}
		for stop := time.Now().Add(eventLimit); ; {
			rings, err := m.s.Rings()
			if err != nil {
				t.Fatal(err)
			}
			if rings.Rx == 30 {
				break
			}
			if time.Now().After(stop) {
				t.Fatalf("%+v", rings)
			}
			time.Sleep(time.Millisecond)
		}
		// And some that are not even kicked.
		f, _ := m.pool.Alloc()
		d := Desc{Frame: f, Off: 256, Len: 100}
		fillPacket(m.s.UMEM().Packet(d), 0)
		if taken, err := m.s.Send([]Desc{d}); taken != 1 || err != nil {
			t.Fatal(taken, err)
		}
		if err := m.shut(); err != nil {
			t.Fatal(err)
		}
		if m.pool.Available() != 512-128-len(m.canaries) {
			t.Errorf("mate %d: %d frames are free", m.index, m.pool.Available())
		}
		after, err := other.s.Rings()
		if err != nil || after.Fill < before.Fill-1 {
			t.Errorf("mate %d: %d of %d frames are in the fill ring, %v", m.index, after.Fill, before.Fill, err)
		}
		if m.s, err = tryOpen(n.ns, m.pool, Config{Interface: "a", ShareQueue: true, RxFrames: -1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(first.shut(), second.shut(), first.checkCanaries(), second.checkCanaries()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(Census{Free: 1024 - 32, Yours: 32}, n.umem.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// leavingNet has sockets on one queue that leave it. They receive no packets.
type leavingNet struct {
	ns    *testbed.Namespace
	socks []*Socket
}

func newLeavingNet(t *testing.T, sockets int, cfg Config) leavingNet {
	t.Helper()
	n := leavingNet{ns: newNet(t, testbed.VethConfig{})}
	u := newUMEM(t, UMEMConfig{Frames: 64 * sockets})
	cfg.Interface, cfg.ShareQueue, cfg.BindTimeout = "a", true, 50*time.Millisecond
	for range sockets {
		n.socks = append(n.socks, open(t, n.ns, newPool(t, u, 64), cfg))
	}
	return n
}

// lands sends packets from the i-th socket, which the kernel completes, and the second one finds
// the completions.
func (n leavingNet) lands(t *testing.T, i, packets int) []Frame {
	t.Helper()
	s := n.socks[i]
	sent := newPackets(t, s, 0, packets, 60)
	if taken, err := s.Send(sent); taken != packets || err != nil {
		t.Fatal(taken, err)
	}
	if err := s.Kick(); err != nil {
		t.Fatal(err)
	}
	for stop := time.Now().Add(eventLimit); len(s.landed) < packets; time.Sleep(time.Millisecond) {
		if done, err := n.socks[1].Completed(make([]Frame, 1)); done != 0 || err != nil {
			t.Fatal(done, err)
		}
		if time.Now().After(stop) {
			t.Fatalf("%d of %d packets are completed", len(s.landed), packets)
		}
	}
	return frameNumbers(sent)
}

// sticks sends packets from the first socket that the kernel does not take: the link goes down.
func (n leavingNet) sticks(t *testing.T, packets int) []Frame {
	t.Helper()
	if err := n.ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	sent := newPackets(t, n.socks[0], 0, packets, 60)
	if taken, err := n.socks[0].Send(sent); taken != packets || err != nil {
		t.Fatal(taken, err)
	}
	return frameNumbers(sent)
}

func (n leavingNet) leave(t *testing.T, i int, want ...Frame) {
	t.Helper()
	if err := n.socks[i].Close(); err != nil {
		t.Fatal(err)
	}
	n.reclaims(t, i, want...)
}

func (n leavingNet) reclaims(t *testing.T, i int, want ...Frame) {
	t.Helper()
	flying, err := n.socks[i].Reclaim()
	if diff := cmp.Diff(want, flying); diff != "" || err != nil {
		t.Errorf("socket %d: %v (-want +got):\n%s", i, err, diff)
	}
	if err := n.socks[i].Pool().Free(flying...); err != nil {
		t.Error(err)
	}
}

// When a socket is reopened on its queue, it gets back frames whose completion others have seen;
// the others may still complete.
func TestShareQueueReopened(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1})
	s := n.socks[0]
	landed, stuck := n.lands(t, 0, 4), n.sticks(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantErr(t, s.Reopen(ctx), ErrLinkDown)
	if err := n.ns.SetUp("a", true); err != nil {
		t.Fatal(err)
	}
	if err := s.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make([]Frame, 8)
	count, err := s.Completed(done)
	if diff := cmp.Diff(landed, done[:count]); diff != "" || err != nil || s.InFlight() != 1 {
		t.Errorf("%d in flight, %v (-want +got):\n%s", s.InFlight(), err, diff)
	}
	if err := s.Pool().Free(landed...); err != nil {
		t.Error(err)
	}
	n.leave(t, 1)
	n.leave(t, 0, stuck...)
}

// A socket that has left gets all its frames, completed or not, when the last socket has left.
func TestShareQueueLastLeaves(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1})
	frames := n.lands(t, 0, 2)
	frames = append(frames, n.sticks(t, 2)...)
	if err := n.socks[0].Close(); err != nil {
		t.Fatal(err)
	}
	_, err := n.socks[0].Reclaim()
	wantErr(t, err, ErrStillLent)
	q := n.socks[1].mates
	n.leave(t, 1)
	if slices.Contains(n.socks[0].state, q.landed) {
		t.Errorf("a frame has the number %d of the queue, which is free", q.number)
	}
	n.reclaims(t, 0, frames...)
}

// A socket that leaves with no frames in flight needs no Reclaim.
func TestShareQueueLeavesNothing(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1})
	done := n.lands(t, 0, 4)
	if count, err := n.socks[0].Completed(make([]Frame, 4)); count != 4 || err != nil {
		t.Fatal(count, err)
	}
	if err := errors.Join(n.socks[0].Pool().Free(done...), n.socks[0].Close()); err != nil {
		t.Fatal(err)
	}
	if n.socks[0].id != 0 {
		t.Errorf("number %d of the UMEM is still taken", n.socks[0].id)
	}
}

// A socket that has left reads its frames' completions by itself.
func TestShareQueueLeaverLooks(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1})
	sent := newPackets(t, n.socks[0], 0, 4, 60)
	if taken, err := n.socks[0].Send(sent); taken != 4 || err != nil {
		t.Fatal(taken, err)
	}
	if err := n.socks[0].Kick(); err != nil {
		t.Fatal(err)
	}
	n.leave(t, 0, frameNumbers(sent)...)
}

// The kernel sends nothing while the completion ring is full: a leaving socket makes room.
func TestShareQueueLeaverMakesRoom(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1, TxRing: 16, CompletionRing: 16})
	full := newPackets(t, n.socks[1], 0, 16, 60)
	if taken, err := n.socks[1].Send(full); taken != 16 || err != nil {
		t.Fatal(taken, err)
	}
	if err := n.socks[1].Kick(); err != nil {
		t.Fatal(err)
	}
	last := newPackets(t, n.socks[0], 0, 1, 60)
	if taken, err := n.socks[0].Send(last); taken != 1 || err != nil {
		t.Fatal(taken, err)
	}
	n.leave(t, 0, frameNumbers(last)...)
	n.leave(t, 1, frameNumbers(full)...)
}

// A socket's frames in the fill ring are added once: the next one adds nothing, the one after that
// all.
func TestShareQueueInherits(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: 16})
	filled := func(want int) {
		t.Helper()
		rings, err := n.socks[1].Rings()
		if err != nil || rings.Fill != want {
			t.Errorf("%d frames in the fill ring, want %d, %v", rings.Fill, want, err)
		}
	}
	filled(32)
	n.leave(t, 0)
	filled(32)
	for _, want := range []int{32, 48} {
		open(t, n.ns, n.socks[0].Pool(), Config{Interface: "a", ShareQueue: true, RxFrames: 16})
		filled(want)
	}
}

// An interface that moves to another namespace and back loses its sockets, and keeps its number. As
// soon as one socket is on it again, one that had left gets its frames.
func TestShareQueueInterfaceReturns(t *testing.T) {
	elsewhere := newNet(t, testbed.VethConfig{})
	if err := elsewhere.Delete("a"); err != nil {
		t.Fatal(err)
	}
	n := newLeavingNet(t, 3, Config{RxFrames: -1})
	stuck := n.sticks(t, 3)
	if err := n.socks[0].Close(); err != nil {
		t.Fatal(err)
	}
	move := func(from, to *testbed.Namespace) {
		t.Helper()
		err := from.Do(func() error {
			link, err := netlink.LinkByName("a")
			if err != nil {
				return err
			}
			return netlink.LinkSetNsFd(link, to.FD())
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	before := n.socks[1].Info().Ifindex
	move(n.ns, elsewhere)
	move(elsewhere, n.ns)
	if err := n.ns.SetUp("a", true); err != nil {
		t.Fatal(err)
	}
	if err := n.socks[1].Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := n.socks[1].Info().Ifindex; after != before {
		t.Fatalf("interface %d is %d now: to have its number again is what this test is about", before, after)
	}
	n.reclaims(t, 0, stuck...)
	if err := n.socks[2].Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.socks[1].mates != n.socks[2].mates {
		t.Error("the sockets do not share the queue any more")
	}
	n.leave(t, 2, n.lands(t, 2, 4)...)
	n.leave(t, 1)
}
