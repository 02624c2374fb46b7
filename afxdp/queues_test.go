// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// veth delivers what was sent on transmit queue i to receive queue i of the peer, so each queue's
// packets can be distinguished.
func TestTwoQueuesShareUMEM(t *testing.T) {
	for name, parked := range map[string]bool{"ppoll": false, "parked": true} {
		t.Run(name, func(t *testing.T) { testTwoQueues(t, parked) })
	}
}

func testTwoQueues(t *testing.T, parked bool) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	if rx, tx, err := queueCountsIn(ns, "b"); rx != 2 || tx != 2 || err != nil {
		t.Fatalf("%d receive and %d transmit queues, %v", rx, tx, err)
	}
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	u := newUMEM(t, UMEMConfig{})
	var senders, receivers [2]*Socket
	for q := range 2 {
		// The flag, which the kernel forbids for the second socket, is not passed on.
		senders[q] = open(t, ns, newPool(t, u, 1024), Config{Interface: "a", Queue: q, Mode: BindCopy})
		receivers[q] = open(t, ns, newPool(t, u, 1024), Config{Interface: "b", Queue: q, XSKMap: prog.XSKMap()})
	}
	if first, second := senders[0].Info(), senders[1].Info(); first.SharedUMEM || !second.SharedUMEM {
		t.Errorf("shared: %v, %v; want false, true", first.SharedUMEM, second.SharedUMEM)
	}
	poller := newPoller(t, parked, receivers[:]...)
	for round := range uint64(3) {
		for q, s := range senders {
			transmit(t, s, newPackets(t, s, uint64(q)*1000+round*100, 100, 190))
		}
		for came := map[*Socket]bool{}; len(came) < 2; {
			ready, err := poller.Poll(EventRx, eventLimit)
			if err != nil || len(ready) == 0 {
				t.Fatal(ready, err)
			}
			for _, r := range ready {
				if r.Events != EventRx || r.Err != nil {
					t.Fatal(ready)
				}
				came[r.Socket] = true
			}
		}
		for q, s := range receivers {
			if diff := cmp.Diff(upTo(uint64(q)*1000+round*100, 100), receive(t, s, 100)); diff != "" {
				t.Fatalf("queue %d (-want +got):\n%s", q, diff)
			}
		}
	}
	if ready, err := poller.Poll(EventRx, time.Millisecond); len(ready) != 0 || err != nil {
		t.Errorf("idle poller: %v, %v", ready, err)
	}
	receivers[1].Wake()
	if ready, err := poller.Poll(EventRx, eventLimit); !slices.Equal(ready, []Ready{{receivers[1], EventWake, nil}}) || err != nil {
		t.Errorf("Wake of the second socket: %v, %v", ready, err)
	}
	// Closing the registering socket leaves the one that shares running.
	if err := receivers[0].Close(); err != nil {
		t.Fatal(err)
	}
	if ready, err := poller.Poll(EventRx, -1); !slices.Equal(ready, []Ready{{receivers[0], 0, net.ErrClosed}}) || err != nil {
		t.Errorf("poller with a closed socket: %v, %v", ready, err)
	}
	transmit(t, senders[1], newPackets(t, senders[1], 5000, 10, 190))
	if ready, err := poller.Poll(EventRx, eventLimit); !slices.Equal(ready, []Ready{{receivers[1], EventRx, nil}}) || err != nil {
		t.Errorf("the other socket: %v, %v", ready, err)
	}
	if diff := cmp.Diff(upTo(5000, 10), receive(t, receivers[1], 10)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An explicit mode is not silently replaced by a sibling's.
func TestSharingDoesNotChangeTheMode(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	u := newUMEM(t, UMEMConfig{})
	open(t, ns, newPool(t, u, 1024), Config{Interface: "a", Mode: BindCopy})
	_, err := tryOpen(ns, newPool(t, u, 1024), Config{Interface: "a", Queue: 1, Mode: BindZeroCopy})
	wantErr(t, err, errors.ErrUnsupported)
	// Nor does a sibling decide that had an explicit mode, or is elsewhere.
	for _, cfg := range []Config{{Interface: "a", Queue: 1}, {Interface: "b"}} {
		s := open(t, ns, newPool(t, u, 512), cfg)
		if s.Info().SharedUMEM {
			t.Errorf("queue %d of %s has its sibling's mode", cfg.Queue, cfg.Interface)
		}
		transmit(t, s, newPackets(t, s, 0, 10, 60))
	}
	// A sibling with the same choice on the same interface does, whichever of the three is found
	// first.
	pool := newPool(t, u, 0)
	for range 20 {
		s := open(t, ns, pool, Config{Interface: "b", Queue: 1, RxFrames: -1})
		if !s.Info().SharedUMEM {
			t.Error("two sockets of one interface registered the UMEM twice")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func queueCountsIn(ns *testbed.Namespace, ifname string) (rx, tx int, err error) {
	err = ns.Do(func() (err error) {
		rx, tx, err = QueueCounts(ifname)
		return err
	})
	return rx, tx, err
}

// A frame that one socket has in flight cannot complete on another, nor move
// to another's fill ring.
func TestFramesMoveBetweenSockets(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	u := newUMEM(t, UMEMConfig{Frames: 256})
	a := open(t, ns, newPool(t, u, 128), Config{Interface: "a"})
	b := open(t, ns, newPool(t, u, 0), Config{Interface: "b", XSKMap: prog.XSKMap()})
	sent := newPackets(t, a, 0, 4, 60)
	if n, err := a.Send(sent); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	_, err := b.Fill(frameNumbers(sent))
	wantErr(t, err, ErrFrameState)
	_, err = b.Send(sent)
	wantErr(t, err, ErrFrameState)
	if err := a.Kick(); err != nil {
		t.Fatal(err)
	}
	var done []Frame
	for len(done) < 4 {
		buf := make([]Frame, 4)
		if ev, err := a.Poll(EventCompletion, eventLimit); ev&EventCompletion == 0 || err != nil {
			t.Fatal(ev, err)
		}
		n, err := a.Completed(buf)
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, buf[:n]...)
	}
	// Once the caller owns it again, another socket's fill ring may have it.
	if n, err := b.Fill(done); n != 4 || err != nil {
		t.Errorf("filled %d, %v", n, err)
	}
	receive(t, b, 4)
}

func TestJumboPackets(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{MTU: 9000})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), MultiBuffer: true})
	if prog.Mode() != AttachNative {
		t.Errorf("mode %v, want native", prog.Mode())
	}
	ua, ub := newUMEM(t, UMEMConfig{}), newUMEM(t, UMEMConfig{})
	a := open(t, ns, newPool(t, ua, 0), Config{Interface: "a", MultiBuffer: true})
	b := open(t, ns, newPool(t, ub, 0), Config{Interface: "b", MultiBuffer: true, XSKMap: prog.XSKMap()})

	for _, length := range []int{60, 1792, 1793, 4000, 9014} {
		packet := make([]byte, length)
		fillPacket(packet, uint64(length))
		descs := fragment(t, a, packet, 1700)
		transmit(t, a, descs)
		if err := a.Pool().Free(frameNumbers(descs)...); err != nil {
			t.Fatal(err)
		}
		got, frags := receiveJumbo(t, b)
		if n, err := packetNumber(got); n != uint64(length) || len(got) != length || err != nil {
			t.Fatalf("length %d: received %d bytes: %v", length, len(got), err)
		}
		if want := (length + 1791) / 1792; frags != want {
			t.Errorf("length %d came in %d fragments, want %d", length, frags, want)
		}
	}
	if n := a.Pool().Available() + 2048; n != ua.Frames() {
		t.Errorf("%d of %d frames are left", n, ua.Frames())
	}
}

// fragment cuts a packet into descriptors of at most size bytes.
func fragment(t testing.TB, s *Socket, packet []byte, size int) (descs []Desc) {
	t.Helper()
	for chunk := range slices.Chunk(packet, size) {
		f, ok := s.Pool().Alloc()
		if !ok {
			t.Fatal("no free frame")
		}
		d := Desc{Frame: f, Off: 256, Len: uint32(len(chunk)), Flags: More}
		copy(s.UMEM().Packet(d), chunk)
		descs = append(descs, d)
	}
	descs[len(descs)-1].Flags = 0
	return descs
}

// receiveJumbo returns one packet and the number of its fragments.
func receiveJumbo(t testing.TB, s *Socket) (packet []byte, fragments int) {
	t.Helper()
	if ev, err := s.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	descs := make([]Desc, MaxFragments)
	n, err := s.Receive(descs)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range descs[:n] {
		packet = append(packet, s.UMEM().Packet(d)...)
		if last := d.Flags&More == 0; last != (i == n-1) {
			t.Fatalf("fragment %d of %d: flags %b", i, n, d.Flags)
		}
	}
	if err := s.Release(descs[:n]); err != nil {
		t.Fatal(err)
	}
	return packet, n
}

func TestJumboNeedsMultiBufferOnAllSockets(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	u := newUMEM(t, UMEMConfig{})
	open(t, ns, newPool(t, u, 2048), Config{Interface: "a", MultiBuffer: true})
	_, err := tryOpen(ns, newPool(t, u, 0), Config{Interface: "a", Queue: 1})
	wantErr(t, err, ErrConfig)
}
