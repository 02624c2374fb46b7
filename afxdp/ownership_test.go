// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestOwnership runs a random program and an honest kernel against a model of each frame's owner.
func TestOwnership(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const frames, ring = 24, 16
		s, k := newSim(t, simConfig{frames: frames, ring: ring})
		model := make([]string, frames)
		for i := range model {
			model[i] = "free"
		}
		var taken []xdpDesc // the kernel is transmitting them
		number := uint64(0)
		anyFrame := rapid.Uint32Range(0, frames+2) // three do not exist
		held := func(f uint32) string {
			if f >= frames {
				return "no such frame"
			}
			return model[f]
		}
		// check compares one frame's operation with the model.
		check := func(op string, f uint32, err error) bool {
			allowed := held(f) == "yours"
			if allowed != (err == nil) || (!allowed && !errors.Is(err, ErrFrameState)) {
				rt.Fatalf("%s of frame %d, which is %s: %v", op, f, held(f), err)
			}
			return allowed
		}
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": func(rt *rapid.T) {
				f, ok := s.Pool().Alloc()
				if ok != slices.Contains(model, "free") || (ok && model[f] != "free") {
					rt.Fatalf("Alloc returned %d, %v; it is %s", f, ok, held(uint32(f)))
				}
				if ok {
					model[f] = "yours"
				}
			},
			"free": func(rt *rapid.T) {
				f := anyFrame.Draw(rt, "frame")
				if check("free", f, s.Pool().Free(Frame(f))) {
					model[f] = "free"
				}
			},
			"send": func(rt *rapid.T) {
				f := anyFrame.Draw(rt, "frame")
				n, err := s.Send([]Desc{{Frame: Frame(f), Off: 256, Len: 60}})
				if n == 0 && err == nil {
					if s.InFlight() < ring {
						rt.Fatalf("Send took nothing with %d in flight", s.InFlight())
					}
					return
				}
				if check("send", f, err) {
					model[f] = "in flight"
				}
			},
			"fill": func(rt *rapid.T) {
				f := anyFrame.Draw(rt, "frame")
				n, err := s.Fill([]Frame{Frame(f)})
				if n == 0 && err == nil {
					if room, _ := s.fill.reserveEntries(1); room > 0 {
						rt.Fatal("Fill took nothing although there is room")
					}
					return
				}
				if check("fill", f, err) {
					model[f] = "filling"
				}
			},
			"release": func(rt *rapid.T) {
				f := anyFrame.Draw(rt, "frame")
				room, _ := s.fill.reserveEntries(1)
				if check("release", f, s.Release([]Desc{{Frame: Frame(f)}})) {
					model[f] = map[bool]string{true: "filling", false: "free"}[room > 0]
				}
			},
			"receive": func(rt *rapid.T) {
				descs := make([]Desc, rapid.IntRange(0, 4).Draw(rt, "batch"))
				n, err := s.Receive(descs)
				if err != nil {
					rt.Fatal(err)
				}
				for _, d := range descs[:n] {
					if model[d.Frame] != "filling" {
						rt.Fatalf("received frame %d, which is %s", d.Frame, model[d.Frame])
					}
					model[d.Frame] = "yours"
				}
			},
			"completed": func(rt *rapid.T) {
				done := make([]Frame, rapid.IntRange(0, 4).Draw(rt, "batch"))
				n, err := s.Completed(done)
				if err != nil {
					rt.Fatal(err)
				}
				for _, f := range done[:n] {
					if model[f] != "in flight" {
						rt.Fatalf("completed frame %d, which is %s", f, model[f])
					}
					model[f] = "yours"
				}
			},
			"kernel delivers": func(rt *rapid.T) {
				k.deliver(number, 0)
				number++
			},
			"kernel transmits": func(rt *rapid.T) {
				if d, ok := k.transmit(); ok {
					taken = append(taken, d)
				}
			},
			"kernel completes": func(rt *rapid.T) {
				if len(taken) == 0 {
					return
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(rt, "which")
				if !k.complete(taken[i].Addr) {
					rt.Fatal("no room for a completion")
				}
				taken = slices.Delete(taken, i, i+1)
			},
			"": func(rt *rapid.T) {
				for f, want := range model {
					if got := stateName(s.state[f]); got != want {
						rt.Fatalf("frame %d is %s, want %s", f, got, want)
					}
				}
				free := 0
				for _, m := range model {
					if m == "free" {
						free++
					}
				}
				if s.Pool().Available() != free {
					rt.Fatalf("pool has %d frames, want %d", s.Pool().Available(), free)
				}
				if s.in.count.BadDescs+s.out.count.BadCompletions != 0 {
					rt.Fatalf("an honest kernel was accused: %+v", s.in.count)
				}
			},
		})
	})
}

// TestFragmentsAreTakenWhole sends and receives random packets of several
// fragments through rings and batches that cut them anywhere.
func TestFragmentsAreTakenWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, k := newSim(t, simConfig{frames: 256, ring: 64, multi: true})
		lengths := rapid.SliceOfN(rapid.IntRange(1, MaxFragments), 1, 12).Draw(rt, "fragments of each packet")
		var descs []Desc
		var packets []int // index of each packet's end
		for _, n := range lengths {
			for i := range n {
				f, ok := s.Pool().Alloc()
				if !ok {
					break
				}
				d := Desc{Frame: f, Off: 256, Len: 60}
				if i < n-1 {
					d.Flags = More
				}
				descs = append(descs, d)
			}
			packets = append(packets, len(descs))
		}
		sent := 0
		for sent < len(descs) {
			n, err := s.Send(descs[sent:])
			if err != nil {
				rt.Fatal(err)
			}
			sent += n
			if n > 0 && !slices.Contains(packets, sent) {
				rt.Fatalf("Send stopped at %d, inside a packet; ends are %v", sent, packets)
			}
			for range rapid.IntRange(1, 40).Draw(rt, "transmitted") {
				if d, ok := k.transmit(); ok {
					k.complete(d.Addr)
				}
			}
			done := make([]Frame, 64)
			if _, err := s.Completed(done); err != nil {
				rt.Fatal(err)
			}
		}
		// Now in the other direction.
		s, k = newSim(t, simConfig{frames: 64, ring: 64, multi: true})
		if _, err := s.Refill(64); err != nil {
			rt.Fatal(err)
		}
		for _, n := range lengths {
			if free, _ := k.rx.reserveEntries(MaxFragments); int(free) < n {
				break
			}
			for i := range n {
				options := uint32(More)
				if i == n-1 {
					options = 0
				}
				if !k.deliver(0, options) {
					rt.Fatal("no frame to deliver to")
				}
			}
			if rapid.Bool().Draw(rt, "receive now") {
				receiveWhole(rt, s, rapid.IntRange(1, 2*MaxFragments).Draw(rt, "batch"))
			}
		}
	})
}

func receiveWhole(rt *rapid.T, s *Socket, batch int) {
	descs := make([]Desc, batch)
	n, err := s.Receive(descs)
	if err != nil {
		if !errors.Is(err, ErrShortBatch) || batch >= MaxFragments {
			rt.Fatalf("batch of %d: %v", batch, err)
		}
		return
	}
	if n > 0 && descs[n-1].Flags&More != 0 {
		rt.Fatalf("batch of %d ends inside a packet", batch)
	}
	if err := s.Release(descs[:n]); err != nil {
		rt.Fatal(err)
	}
}

func TestDescriptorErrors(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	plain, _ := newSim(t, simConfig{frames: 64, ring: 64})
	frames := make([]Frame, 40)
	s.Pool().AllocBatch(frames)
	plain.Pool().AllocBatch(frames)
	long := make([]Desc, MaxFragments+1)
	for i := range long {
		long[i] = Desc{Frame: frames[i], Off: 256, Len: 60, Flags: More}
	}
	long[MaxFragments].Flags = 0
	one := func(d Desc) []Desc { d.Frame = frames[0]; return []Desc{d} }
	for name, c := range map[string]struct {
		socket *Socket
		descs  []Desc
		taken  int
	}{
		"short":            {s, one(Desc{Off: 256, Len: 13}), 0},
		"empty":            {s, one(Desc{Off: 256}), 0},
		"beyond the frame": {s, one(Desc{Off: 2000, Len: 49}), 0},
		"huge":             {s, one(Desc{Off: 65535, Len: ^uint32(0)}), 0},
		"unknown flag":     {s, one(Desc{Off: 256, Len: 60, Flags: 1 << 5}), 0},
		"no end":           {s, one(Desc{Off: 256, Len: 60, Flags: More}), 0},
		"too many":         {s, long, 0},
		"not multi-buffer": {plain, long[:2], 0},
		"the second one":   {s, []Desc{{Frame: frames[0], Off: 256, Len: 60}, {Frame: frames[1], Off: 256, Len: 1}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := c.socket.Send(c.descs)
			wantErr(t, err, ErrDescriptor)
			if n != c.taken {
				t.Errorf("%d were taken, want %d", n, c.taken)
			}
			for _, d := range c.descs[c.taken:] {
				if st := c.socket.state[d.Frame]; st != stateYours {
					t.Errorf("refused frame %d is %s", d.Frame, stateName(st))
				}
			}
			for _, d := range c.descs[:c.taken] {
				c.socket.state[d.Frame] = stateYours
			}
		})
	}
}

// TestOrdering exchanges packets with a kernel in another goroutine. Entries
// and packets are plain memory that only the ring positions protect: under
// -race a missing acquire or release is reported, on any architecture.
func TestOrdering(t *testing.T) {
	const packets = 20000
	s, k := newSim(t, simConfig{frames: 128, ring: 64})
	if _, err := s.Refill(64); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var echoed uint64
	wg.Go(func() { // deliver numbered packets; check and complete the echoes
		for sent := uint64(0); echoed < packets; {
			idle := true
			if sent < packets {
				if k.deliver(sent, 0) {
					sent, idle = sent+1, false
				}
			}
			if d, ok := k.transmit(); ok {
				idle = false
				b := k.umem.mem[d.Addr : d.Addr+uint64(d.Len)]
				if got := uint64(b[8]) | uint64(b[9])<<8 | uint64(b[10])<<16; got != ^echoed&0xffffff {
					t.Errorf("echo %d carries %#x", echoed, got)
				}
				echoed++
				if !k.complete(d.Addr) {
					t.Error("no room for a completion")
				}
			}
			if idle {
				time.Sleep(time.Microsecond)
			}
		}
	})
	descs, done := make([]Desc, 16), make([]Frame, 16)
	for completed := 0; completed < packets; {
		n, err := s.Receive(descs)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range descs[:n] {
			b := s.umem.Packet(d)
			number := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16
			b[8], b[9], b[10] = byte(^number), byte(^number>>8), byte(^number>>16)
			descs[i] = d
		}
		if sent, err := s.Send(descs[:n]); sent != n || err != nil {
			t.Fatal(sent, n, err)
		}
		c, err := s.Completed(done)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := s.Fill(done[:c]); f != c || err != nil {
			t.Fatal(f, c, err)
		}
		completed += c
		if n == 0 && c == 0 {
			time.Sleep(time.Microsecond)
		}
	}
	wg.Wait()
}
