// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// nearWrap is where the tests' rings start: positions run through all of uint32.
const nearWrap = ^uint32(0) - 2

// newTestRing is an empty ring of 8 entries.
func newTestRing() (*ring, *atomic.Uint32, *atomic.Uint32) {
	r := &ring{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32), size: 8}
	r.producer.Store(nearWrap)
	r.consumer.Store(nearWrap)
	r.prod, r.cons = nearWrap, nearWrap
	return r, r.producer, r.consumer
}

func TestRingProducer(t *testing.T) {
	r, producer, consumer := newTestRing()
	if n, ok := r.reserveEntries(100); n != 8 || !ok {
		t.Fatalf("empty ring has room for %d (%v), want 8", n, ok)
	}
	r.submitEntries(6)
	if got := producer.Load(); got != 3 {
		t.Errorf("producer is %d, want 3 (wrapped)", got)
	}
	if n, _ := r.reserveEntries(8); n != 2 {
		t.Errorf("room for %d, want 2", n)
	}
	consumer.Add(5)
	if n, _ := r.reserveEntries(2); n != 2 {
		t.Errorf("room for %d, want the 2 that were asked for", n)
	}
	if n, _ := r.reserveEntries(8); n != 7 {
		t.Errorf("room for %d, want 7", n)
	}
	if n, ok := r.pendingEntries(); n != 1 || !ok {
		t.Errorf("%d pending, want 1", n)
	}
}

func TestRingConsumer(t *testing.T) {
	r, producer, consumer := newTestRing()
	if n, ok := r.availableEntries(8); n != 0 || !ok {
		t.Fatalf("empty ring has %d (%v)", n, ok)
	}
	producer.Add(8)
	if n, _ := r.availableEntries(3); n != 3 {
		t.Errorf("%d available, want the 3 that were asked for", n)
	}
	r.releaseEntries(3)
	if got := consumer.Load(); got != 0 {
		t.Errorf("consumer is %d, want 0 (wrapped)", got)
	}
	if n, _ := r.availableEntries(8); n != 5 {
		t.Errorf("%d available, want 5", n)
	}
}

func TestRingRefusesImpossiblePositions(t *testing.T) {
	for _, ahead := range []uint32{9, 1 << 31, ^uint32(0)} {
		r, producer, _ := newTestRing()
		producer.Add(ahead)
		if n, ok := r.availableEntries(8); n != 0 || ok {
			t.Errorf("producer %d ahead: %d available, ok %v", ahead, n, ok)
		}
	}
	// A consumer ahead of the producer, or more than a ring behind it.
	for _, ahead := range []uint32{1, 1 << 31, ^uint32(8)} {
		r, _, consumer := newTestRing()
		consumer.Add(ahead)
		if n, ok := r.reserveEntries(9); n != 0 || ok {
			t.Errorf("consumer %d ahead: room for %d, ok %v", ahead, n, ok)
		}
		if n, ok := r.pendingEntries(); n != 0 || ok {
			t.Errorf("consumer %d ahead: %d pending, ok %v", ahead, n, ok)
		}
	}
}

// The kernel gives the offsets in the mapping; one that is outside it must not become a pointer.
func TestRingOffsetsAreChecked(t *testing.T) {
	good := ringOffsets{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	mem := heap(192 + 16*16)
	if _, err := newDescRing(mem, good, 16); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*ringOffsets){
		"producer beyond":     func(o *ringOffsets) { o.Producer = uint64(len(mem)) - 3 },
		"consumer far beyond": func(o *ringOffsets) { o.Consumer = 1 << 63 },
		"flags unaligned":     func(o *ringOffsets) { o.Flags = 129 },
		"entries beyond":      func(o *ringOffsets) { o.Desc += 8 },
		"entries far beyond":  func(o *ringOffsets) { o.Desc = ^uint64(7) },
		"entries unaligned":   func(o *ringOffsets) { o.Desc = 188 },
	} {
		bad := good
		edit(&bad)
		if _, err := newDescRing(mem, bad, 16); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := newAddrRing(mem, bad, 32); err == nil {
			t.Errorf("%s: accepted for addresses", name)
		}
	}
}

// A ring with impossible positions is reported by every method that writes or reads it.
func TestCorruptRingsOfAllMethods(t *testing.T) {
	one, frame := make([]Desc, 1), make([]Frame, 1)
	for name, call := range map[string]func(*Socket) error{
		"Release": func(s *Socket) error { return s.Release(one) },
		"Fill":    func(s *Socket) error { _, err := s.Fill(frame); return err },
		"Refill":  func(s *Socket) error { _, err := s.Refill(1); return err },
		"Send":    func(s *Socket) error { _, err := s.Send(one); return err },
		"stock":   func(s *Socket) error { s.state[3] = s.filling; return s.stockFillRing(1) },
	} {
		s, k := newSim(t, simConfig{frames: 16, ring: 8})
		s.fill.cons, s.tx.cons = ^uint32(7), ^uint32(7) // full, so that it looks
		k.fill.consumer.Store(1)
		k.tx.consumer.Store(1)
		if err := call(s); !errors.Is(err, ErrRingCorrupt) {
			t.Errorf("%s: %v, want ErrRingCorrupt", name, err)
		}
		if s.fill.producer.Load() != 0 || s.tx.producer.Load() != 0 {
			t.Errorf("%s has written", name)
		}
	}
	// So does Kick, even if the kernel changes the ring during the call.
	s, k := kickCase(t, 3, 0, 0)
	k.onSend = func() unix.Errno { k.tx.consumer.Store(99); return 0 }
	if err := s.Kick(); !errors.Is(err, ErrRingCorrupt) {
		t.Errorf("Kick: %v, want ErrRingCorrupt", err)
	}
}
