// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"slices"
	"testing"
)

// A socket has no more packets in flight than the completion ring has room for.
func TestSendIsBounded(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 32, ring: 8})
	s.maxInFlight = 5
	var descs [8]Desc
	for i := range descs {
		f, _ := s.Pool().Alloc()
		descs[i] = Desc{Frame: f, Off: 256, Len: minPacket}
	}
	for _, c := range []struct{ completed, want int }{{0, 5}, {0, 0}, {2, 2}, {1, 1}} {
		for range c.completed {
			d, _ := k.transmit()
			k.complete(d.Addr)
		}
		done := make([]Frame, 8)
		n, err := s.Completed(done)
		if n != c.completed || err != nil {
			t.Fatal(n, err)
		}
		for i, f := range done[:n] {
			descs[i].Frame = f
		}
		if n, err := s.Send(descs[:]); n != c.want || err != nil && !errors.Is(err, ErrFrameState) {
			t.Errorf("%d sent, want %d, %v", n, c.want, err)
		}
		if s.InFlight() != 5 {
			t.Errorf("%d in flight", s.InFlight())
		}
		if c.want == 5 {
			copy(descs[:], descs[5:])
		}
	}
	if s.out.count.TxCompleted != 3 || s.out.count.TxSubmitted != 8 {
		t.Errorf("counted %+v", s.in.count)
	}
}

// The reasons for refusing a descriptor, with valid neighbours of each.
func TestDescriptorReasons(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 64, ring: 64, multi: true, txMeta: true})
	plain, _ := newSim(t, simConfig{frames: 64, ring: 64})
	for name, c := range map[string]struct {
		s      *Socket
		descs  []Desc
		reason string
	}{
		"shortest":         {plain, []Desc{{Off: 256, Len: 14}}, ""},
		"short":            {plain, []Desc{{Off: 256, Len: 13}}, "shorter than an Ethernet header"},
		"empty":            {plain, []Desc{{Off: 256}}, "shorter than an Ethernet header"},
		"start of a frame": {plain, []Desc{{Len: 14}}, ""},
		"end of a frame":   {plain, []Desc{{Off: 2034, Len: 14}}, ""},
		"beyond":           {plain, []Desc{{Off: 2035, Len: 14}}, "reaches beyond the frame"},
		"flag":             {plain, []Desc{{Off: 256, Len: 60, Flags: 4}}, "unknown flags"},
		"fragments":        {plain, []Desc{{Off: 256, Len: 60, Flags: More}}, "several fragments without Config.MultiBuffer"},
		"metadata":         {plain, []Desc{{Off: 256, Len: 60, Flags: WithTxMeta}}, "metadata without UMEMConfig.TxMetadata"},
		"room":             {s, []Desc{{Off: TxMetaSize, Len: 60}}, ""},
		"no room":          {s, []Desc{{Off: TxMetaSize - 1, Len: 60}}, "no room for the TX metadata before the packet"},
		"end of fragments": {s, []Desc{{Off: 256, Len: 2048 - 256, Flags: More}, {Off: 2040, Len: 8}}, ""},
		"beyond at last":   {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 2041, Len: 8}}, "reaches beyond the frame"},
		"one byte":         {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 1}}, ""},
		"no byte":          {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256}}, "shorter than an Ethernet header"},
		"with metadata":    {s, []Desc{{Off: 256, Len: 60, Flags: More | WithTxMeta}, {Off: 256, Len: 1}}, ""},
		"late metadata":    {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 60, Flags: WithTxMeta}}, "metadata on a fragment that is not the first"},
		"second packet":    {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 1}, {Off: 256, Len: 60, Flags: WithTxMeta}}, ""},
		"most fragments":   {s, slices.Repeat([]Desc{{Off: 256, Len: 60}}, MaxFragments), ""},
		"more fragments":   {s, slices.Repeat([]Desc{{Off: 256, Len: 60}}, MaxFragments+1), "more fragments than MaxFragments"},
		"no end":           {s, []Desc{{Off: 256, Len: 60}, {Off: 256, Len: 60, Flags: More}}, "the last descriptor of the batch has More set"},
	} {
		frames := make([]Frame, len(c.descs))
		c.s.Pool().AllocBatch(frames)
		for i := range c.descs {
			c.descs[i].Frame = frames[i]
			clear(c.s.umem.Bytes(frames[i]))
			if len(c.descs) >= MaxFragments && i < len(c.descs)-1 {
				c.descs[i].Flags = More
			}
		}
		n, err := c.s.Send(c.descs)
		var de *DescError
		switch {
		case c.reason == "":
			if n != len(c.descs) || err != nil {
				t.Errorf("%s: %d of %d taken, %v", name, n, len(c.descs), err)
			}
		case !errors.As(err, &de) || de.Reason != c.reason:
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		case name == "no end" && (n != 1 || de.Desc != c.descs[1]):
			t.Errorf("%s: %d taken, %+v refused", name, n, de.Desc)
		}
		for i, f := range frames {
			want := stateYours
			if i < n {
				want = c.s.flying
			}
			if c.s.state[f] != want {
				t.Errorf("%s: frame %d is %s", name, i, stateName(c.s.state[f]))
			}
			c.s.state[f] = stateYours
		}
		// The rings and the pool start again.
		c.s.tx.consumer.Store(c.s.tx.producer.Load())
		c.s.inFlight = 0
		if err := c.s.Pool().Free(frames...); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch whose packet does not fit the ring is cut before that packet.
func TestSendCutsBeforeAPacket(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 64, ring: 4, multi: true})
	frames := make([]Frame, 6)
	s.Pool().AllocBatch(frames)
	descs := make([]Desc, 6)
	for i := range descs {
		descs[i] = Desc{Frame: frames[i], Off: 256, Len: 60}
	}
	descs[2].Flags, descs[3].Flags = More, More
	if n, err := s.Send(descs); n != 2 || err != nil {
		t.Errorf("%d taken, %v, want the 2 packets before that of three fragments", n, err)
	}
	for i, f := range frames {
		if want := []frameState{s.flying, stateYours}[min(i/2, 1)]; s.state[f] != want {
			t.Errorf("frame %d is %s", i, stateName(s.state[f]))
		}
	}
}

// Frames that a replaced socket had in flight come first.
func TestReclaimedFramesAreCompletions(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	var descs [4]Desc
	for i := range descs {
		f, _ := s.Pool().Alloc()
		descs[i] = Desc{Frame: f, Off: 256, Len: 60}
	}
	if n, err := s.Send(descs[:]); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if ev := s.ready(sending, EventCompletion); ev != 0 {
		t.Errorf("events %b", ev)
	}
	for _, d := range descs[:3] {
		s.reclaimed = append(s.reclaimed, d.Frame)
	}
	d, _ := k.transmit()
	k.complete(uint64(descs[3].Frame)<<11 + d.Addr&2047)
	done := make([]Frame, 2)
	for _, want := range [][]Frame{{descs[0].Frame, descs[1].Frame}, {descs[2].Frame}, {descs[3].Frame}, {}} {
		if ev := s.ready(both, EventCompletion|EventRx); (ev == EventCompletion) != (len(want) > 0) {
			t.Errorf("events %b before %v", ev, want)
		}
		n, err := s.Completed(done)
		if err != nil || !slices.Equal(done[:n], want) {
			t.Errorf("%v, %v, want %v", done[:n], err, want)
		}
		for _, f := range done[:n] {
			if s.state[f] != stateYours {
				t.Errorf("frame %d is %s", f, stateName(s.state[f]))
			}
		}
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight", s.InFlight())
	}
}
