// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

// FuzzHostileKernel lets the other side of the rings write anything, between arbitrary calls of the
// program. No call may panic, the program must get only frames inside the UMEM that it owns, no
// frame may be in two places, and nothing outside the UMEM may be written, which the bounds of Go's
// slices guarantee.
func FuzzHostileKernel(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte("\x00\x01\x80\xff\xff\xff\xff\x07\x02\x01\x00\x00\x00\x00\x08\x03"))
	f.Fuzz(func(t *testing.T, script []byte) {
		const frames, ring = 16, 8
		s, k := newSim(t, simConfig{frames: frames, ring: ring, multi: len(script)%2 == 0})
		next := func() (b byte) {
			if len(script) > 0 {
				b, script = script[0], script[1:]
			}
			return b
		}
		word := func() uint64 {
			var b [8]byte
			n := copy(b[:], script)
			script = script[n:]
			return binary.LittleEndian.Uint64(b[:])
		}
		descs, got := make([]Desc, 6), make([]Frame, 6)
		for len(script) > 0 {
			switch op := next(); op % 16 {
			case 0:
				k.rx.producer.Store(uint32(word()))
			case 1:
				k.completion.producer.Store(uint32(word()))
			case 2:
				k.tx.consumer.Store(uint32(word()))
			case 3:
				k.fill.consumer.Store(uint32(word()))
			case 4: // near the truth, so that more than the position's check runs
				k.rx.producer.Add(uint32(op >> 4))
			case 5:
				k.completion.producer.Add(uint32(op >> 4))
			case 6:
				k.tx.consumer.Add(uint32(op >> 4))
				k.fill.consumer.Add(uint32(op >> 4))
			case 7:
				k.rx.descs[op>>4&7] = xdpDesc{Addr: word(), Len: uint32(word()), Options: uint32(next())}
			case 8:
				addr := uint64(next())<<11&(frames<<11-1) + uint64(next())
				k.rx.descs[op>>4&7] = xdpDesc{Addr: addr, Len: uint32(next()), Options: uint32(next() & 1)}
			case 9:
				k.completion.addrs[op>>4&7] = word()
			case 10:
				k.completion.addrs[op>>4&7] = uint64(next()) << 11
			case 11:
				n, err := s.Receive(descs[:op>>4%7])
				expect(t, err, ErrRingCorrupt, ErrShortBatch)
				for _, d := range descs[:n] {
					if b := s.umem.Packet(d); len(b) != int(d.Len) || len(b) == 0 {
						t.Fatalf("packet %+v has %d bytes", d, len(b))
					}
					if s.state[d.Frame] != stateYours {
						t.Fatalf("received frame %d is %s", d.Frame, stateName(s.state[d.Frame]))
					}
				}
				if op>>7 == 0 {
					expect(t, s.Release(descs[:n]), ErrRingCorrupt)
				}
			case 12:
				n, err := s.Completed(got[:op>>4%7])
				expect(t, err, ErrRingCorrupt)
				if err := s.Pool().Free(got[:n]...); err != nil {
					t.Fatalf("completed frames are not ours: %v", err)
				}
			case 13:
				n := s.Pool().AllocBatch(got[:op>>4%7])
				for i, f := range got[:n] {
					descs[i] = Desc{Frame: f, Off: 256, Len: 60}
				}
				_, err := s.Send(descs[:n])
				expect(t, err, ErrRingCorrupt)
			case 14:
				_, err := s.Refill(int(op >> 4))
				expect(t, err, ErrRingCorrupt)
			case 15:
				expect(t, s.Kick(), ErrRingCorrupt)
				_, err := s.Poll(EventRx|EventCompletion, 0)
				expect(t, err)
			}
			checkFrames(t, s)
		}
	})
}

// expect fails on an error other than the possible ones.
func expect(t *testing.T, err error, allowed ...error) {
	t.Helper()
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkFrames checks that the pool and the state bytes agree.
func checkFrames(t *testing.T, s *Socket) {
	t.Helper()
	free := make(map[Frame]bool)
	for _, f := range s.pool.free {
		if free[f] {
			t.Fatalf("frame %d is in the pool twice", f)
		}
		free[f] = true
		if s.state[f] != stateFree {
			t.Fatalf("frame %d is in the pool and %s", f, stateName(s.state[f]))
		}
	}
	for f, st := range s.state {
		if st == stateFree && !free[Frame(f)] {
			t.Fatalf("frame %d is free and not in the pool", f)
		}
	}
}

// Impossible entries are counted, their frames recovered, and honest entries still arrive.
func TestBadEntriesAreCounted(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(5); err != nil {
		t.Fatal(err)
	}
	filled := append([]uint64(nil), k.fill.addrs[:5]...)
	for i, e := range []xdpDesc{
		{Addr: 8 << 11, Len: 60},                      // no such frame
		{Addr: ^uint64(0), Len: 60},                   // nor this
		{Addr: filled[0] + 2000, Len: 60},             // beyond its frame
		{Addr: filled[1] + 256, Len: 0},               // empty
		{Addr: filled[2] + 256, Len: 60},              // honest
		{Addr: filled[2] + 256, Len: 60},              // the same again
		{Addr: uint64(s.pool.free[0]) << 11, Len: 60}, // a frame the kernel does not hold
		{Addr: filled[3] + 256, Len: 60},              // honest
	} {
		k.rx.descs[i] = e
	}
	k.rx.submitEntries(8)
	descs := make([]Desc, 8)
	n, err := s.Receive(descs)
	if err != nil {
		t.Fatal(err)
	}
	want := []Frame{Frame(filled[2] >> 11), Frame(filled[3] >> 11)}
	if n != 2 || descs[0].Frame != want[0] || descs[1].Frame != want[1] {
		t.Errorf("received %v, want frames %v", descs[:n], want)
	}
	if s.in.count.BadDescs != 6 {
		t.Errorf("%d bad entries counted, want 6", s.in.count.BadDescs)
	}
	// 3 never filled, 2 recovered from bad entries.
	if got := s.pool.Available(); got != 5 {
		t.Errorf("%d frames are free, want 5", got)
	}

	done := make([]Frame, 4)
	for i, addr := range []uint64{8 << 11, filled[2], filled[4], ^uint64(0)} {
		k.completion.addrs[i] = addr
	}
	k.completion.submitEntries(4)
	for range 2 { // then they are out of the ring
		if n, err := s.Completed(done); n != 0 || err != nil || s.out.count.BadCompletions != 4 {
			t.Errorf("%d completions, %v, %d bad", n, err, s.out.count.BadCompletions)
		}
	}
	checkFrames(t, s)
}

// Each kind of impossible entry is detected where honest ones are expected: at the head of the
// ring.
func TestBadEntryAtTheHead(t *testing.T) {
	const filled, free = 0, 7 // frames
	for name, bad := range map[string]xdpDesc{
		"no such frame":            {Addr: 8 << 11, Len: 60},
		"beyond its frame":         {Addr: filled<<11 + 2000, Len: 60},
		"empty":                    {Addr: filled<<11 + 256},
		"not the kernel's":         {Addr: free << 11, Len: 60},
		"not the kernel's, beyond": {Addr: free<<11 + 2000, Len: 60},
	} {
		s, k := newSim(t, simConfig{frames: 8, ring: 8})
		for _, f := range []Frame{filled, 1} {
			s.state[f] = stateYours
			s.pool.free = slices.DeleteFunc(s.pool.free, func(g Frame) bool { return g == f })
			if n, err := s.Fill([]Frame{f}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		k.rx.descs[0], k.rx.descs[1] = bad, xdpDesc{Addr: 1<<11 + 256, Len: 60}
		k.rx.submitEntries(2)
		descs := make([]Desc, 4)
		n, err := s.Receive(descs)
		if n != 1 || err != nil || descs[0] != (Desc{Frame: 1, Off: 256, Len: 60}) || s.in.count.BadDescs != 1 {
			t.Errorf("%s: received %+v, %v, %d bad entries", name, descs[:n], err, s.in.count.BadDescs)
		}
		if s.state[free] != stateFree {
			t.Errorf("%s: frame %d is %s", name, free, stateName(s.state[free]))
		}
		checkFrames(t, s)
	}
}

// A bad fragment drops its whole packet, even if the rest arrives later.
func TestBadFragmentDropsThePacket(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	if _, err := s.Refill(16); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, uint32(More))
	k.rx.descs[k.rx.prod%64] = xdpDesc{Addr: ^uint64(0), Len: 60, Options: uint32(More)}
	k.rx.submitEntries(1)
	descs := make([]Desc, MaxFragments)
	if n, err := s.Receive(descs); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	k.deliver(1, uint32(More))
	k.deliver(1, 0)
	k.deliver(2, 0)
	n, err := s.Receive(descs)
	if n != 1 || err != nil {
		t.Fatalf("%d fragments, %v; want the second packet only", n, err)
	}
	if got := s.umem.Packet(descs[0])[0]; got != 2 {
		t.Errorf("received packet %d, want 2", got)
	}
	checkFrames(t, s)
}

func TestCorruptRingsAreReported(t *testing.T) {
	one := make([]Desc, 1)
	for name, c := range map[string]struct {
		corrupt func(*simKernel)
		call    func(*Socket) error
	}{
		"rx":         {func(k *simKernel) { k.rx.producer.Store(9) }, func(s *Socket) error { _, err := s.Receive(one); return err }},
		"completion": {func(k *simKernel) { k.completion.producer.Store(9) }, func(s *Socket) error { _, err := s.Completed(make([]Frame, 1)); return err }},
		"tx":         {func(k *simKernel) { k.tx.consumer.Store(1) }, (*Socket).Kick},
		"fill":       {func(k *simKernel) { k.fill.consumer.Store(1) }, func(s *Socket) error { _, err := s.Refill(8); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			s, k := newSim(t, simConfig{frames: 16, ring: 8})
			c.corrupt(k)
			if name == "fill" {
				s.fill.prod, s.fill.cons = 0, ^uint32(7) // full, so that Send looks
			}
			wantErr(t, c.call(s), ErrRingCorrupt)
			if ev, err := s.Poll(EventRx|EventCompletion, time.Millisecond); err != nil || (ev == 0 && (name == "rx" || name == "completion")) {
				t.Errorf("Poll hides it: %b, %v", ev, err)
			}
		})
	}
}
