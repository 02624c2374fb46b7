// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Entries that fill their frame to the last byte are valid, alone and as fragments, and arrive as
// the kernel wrote them.
func TestPacketsFillTheirFrames(t *testing.T) {
	for _, multi := range []bool{false, true} {
		s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: multi})
		if n, err := s.Refill(5); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		var want []Desc
		for i, e := range []struct{ off, length, options uint32 }{{256, 1792, 0}, {0, 2048, 0}, {2047, 1, 0}, {300, 1748, uint32(More)}, {256, 1792, 0}} {
			if !multi && e.options != 0 {
				break
			}
			f := k.fill.addrs[i] >> 11
			k.rx.descs[i] = xdpDesc{Addr: f<<11 + uint64(e.off), Len: e.length, Options: e.options}
			k.rx.submitEntries(1)
			want = append(want, Desc{Frame: Frame(f), Off: uint16(e.off), Len: e.length, Flags: DescFlags(e.options)})
		}
		got := make([]Desc, 20)
		n, err := s.Receive(got)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got[:n]); diff != "" || s.in.count.BadDescs != 0 || s.in.count.RxReceived != uint64(n) {
			t.Errorf("multi-buffer %v: %+v (-want +got):\n%s", multi, s.in.count, diff)
		}
		// The same packets go out again, to the last byte.
		for i := range got[:n] {
			got[i].Len = max(got[i].Len, minPacket)
			got[i].Off = min(got[i].Off, uint16(2048-got[i].Len))
		}
		if sent, err := s.Send(got[:n]); sent != n || err != nil {
			t.Errorf("multi-buffer %v: %d of %d packets sent: %v", multi, sent, n, err)
		}
		for _, d := range got[:n] {
			e, _ := k.transmit()
			if want := (xdpDesc{Addr: uint64(d.Frame)<<11 + uint64(d.Off), Len: d.Len, Options: uint32(d.Flags)}); e != want {
				t.Errorf("multi-buffer %v: entry %+v, want %+v", multi, e, want)
			}
		}
		if s.InFlight() != n || s.out.count.TxSubmitted != uint64(n) {
			t.Errorf("%d in flight, %d submitted, want %d", s.InFlight(), s.out.count.TxSubmitted, n)
		}
	}
}

// The last fragment of a dropped packet looks like a packet.
func TestRestOfADroppedPacketIsNone(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	if _, err := s.Refill(16); err != nil {
		t.Fatal(err)
	}
	k.rx.descs[0] = xdpDesc{Addr: ^uint64(0), Len: 60, Options: uint32(More)}
	k.rx.submitEntries(1)
	descs := make([]Desc, MaxFragments)
	if n, err := s.Receive(descs); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	k.deliver(1, 0)
	k.deliver(2, 0)
	if n, err := s.Receive(descs); n != 1 || err != nil || s.umem.Packet(descs[0])[0] != 2 {
		t.Errorf("%d packets, %v; want the second alone", n, err)
	}
	if s.in.count.BadDescs != 2 || s.in.count.RxReceived != 1 {
		t.Errorf("counted %+v", s.in.count)
	}
	checkFrames(t, s)
}

// A batch that is shorter than a packet is an error, and nothing is received.
func TestShortBatch(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	if _, err := s.Refill(16); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, uint32(More))
	k.deliver(2, uint32(More))
	for size := range 3 {
		n, err := s.Receive(make([]Desc, size))
		if n != 0 || errors.Is(err, ErrShortBatch) != (size > 0) {
			t.Errorf("a batch of %d: %d, %v", size, n, err)
		}
	}
	if c := s.umem.Census(); c.Filling != 16 {
		t.Errorf("frames are %+v", c)
	}
	// The packet has not ended, but the batch could hold more.
	descs := make([]Desc, 8)
	if n, err := s.Receive(descs); n != 0 || err != nil {
		t.Errorf("a packet whose end has not come: %d, %v", n, err)
	}
	k.deliver(3, 0)
	if n, err := s.Receive(descs); n != 3 || err != nil {
		t.Errorf("the packet: %d, %v", n, err)
	}
	for i, d := range descs[:3] {
		if s.umem.Packet(d)[0] != byte(i+1) || (d.Flags == More) != (i < 2) {
			t.Errorf("fragment %d is %+v", i, d)
		}
	}
}

// Frames without room in the fill ring go to the pool when they are released, and stay with their
// owner when they are filled.
func TestFullFillRing(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	for _, c := range []struct{ ask, want int }{{-1, 0}, {0, 0}, {3, 3}, {100, 5}, {1, 0}} {
		if n, err := s.Refill(c.ask); n != c.want || err != nil {
			t.Fatalf("refilled %d of %d, want %d, %v", n, c.ask, c.want, err)
		}
	}
	frames := make([]Frame, 5)
	if n := s.Pool().AllocBatch(frames); n != 5 || s.Pool().Available() != 3 {
		t.Fatal(n)
	}
	k.fill.availableEntries(8)
	k.fill.releaseEntries(2)
	descs := make([]Desc, 4)
	for i := range descs {
		descs[i].Frame = frames[i]
	}
	if err := s.Release(descs); err != nil {
		t.Fatal(err)
	}
	if got, want := s.fill.addrs[:2], []uint64{uint64(frames[0]) << 11, uint64(frames[1]) << 11}; !slices.Equal(got, want) {
		t.Errorf("the ring has %x, want %x", got, want)
	}
	if s.Pool().Available() != 5 || s.state[frames[1]] != s.filling || s.state[frames[2]] != stateFree || s.state[frames[3]] != stateFree {
		t.Errorf("%d frames are free", s.Pool().Available())
	}
	k.fill.releaseEntries(1)
	var pair [2]Frame
	pair[0] = frames[4]
	pair[1], _ = s.Pool().Alloc()
	if n, err := s.Fill(pair[:]); n != 1 || err != nil || s.state[pair[0]] != s.filling || s.state[pair[1]] != stateYours {
		t.Errorf("filled %d, %v", n, err)
	}
	if got := s.fill.addrs[2]; got != uint64(pair[0])<<11 {
		t.Errorf("the ring has %x", got)
	}
	// A frame that the caller does not own ends the batch after those before it.
	k.fill.releaseEntries(4)
	for name, give := range map[string]func(...Frame) (int, error){
		"release": func(f ...Frame) (int, error) {
			err := s.Release([]Desc{{Frame: f[0]}, {Frame: f[1]}, {Frame: f[2]}})
			return 1, err
		},
		"fill": func(f ...Frame) (int, error) { return s.Fill(f) },
	} {
		a, _ := s.Pool().Alloc()
		b, _ := s.Pool().Alloc()
		for _, strange := range []Frame{pair[0], 16, 1 << 30} {
			n, err := give(a, strange, b)
			var fe *FrameError
			if n != 1 || !errors.As(err, &fe) || fe.Op != name || fe.Frame != strange || s.state[a] != s.filling || s.state[b] != stateYours {
				t.Errorf("%s: %d, %v", name, n, err)
			}
			s.state[a] = stateYours
			k.fill.releaseEntries(1)
		}
		if err := s.Pool().Free(a, b); err != nil {
			t.Fatal(err)
		}
	}
}
