// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFramesAreAccountedFor(t *testing.T) {
	p := newPair(t, UMEMConfig{Frames: 64}, Config{RxFrames: 16})
	sent := newPackets(t, p.a, 0, 10, 190)
	if n, err := p.a.Send(sent); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	// check compares the census of a UMEM with the contents of its only socket's rings.
	check := func(when string, s *Socket, census Census, rings RingCounts) {
		t.Helper()
		if diff := cmp.Diff(census, s.UMEM().Census()); diff != "" {
			t.Errorf("%s: census (-want +got):\n%s", when, diff)
		}
		got, err := s.Rings()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rings, got); diff != "" {
			t.Errorf("%s: rings (-want +got):\n%s", when, diff)
		}
	}
	check("queued", p.a, Census{Free: 38, Filling: 16, InFlight: 10}, RingCounts{Fill: 16, Tx: 10})
	if err := p.a.Kick(); err != nil {
		t.Fatal(err)
	}
	received := make([]Desc, 10)
	for n := 0; n < 10; {
		if _, err := p.b.Poll(EventRx, -1); err != nil {
			t.Fatal(err)
		}
		k, err := p.b.Receive(received[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	check("received", p.b, Census{Free: 48, Yours: 10, Filling: 6}, RingCounts{Fill: 6})
	// A frame completes when the kernel frees its copy, which the receiver's end releases before it
	// delivers the packet.
	check("sent", p.a, Census{Free: 38, Filling: 16, InFlight: 10}, RingCounts{Fill: 16, Completion: 10})
	transmit(t, p.a, nil)
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	if flying, err := p.b.Reclaim(); len(flying) > 0 || err != nil {
		t.Error(flying, err)
	}
	if diff := cmp.Diff(Census{Free: 54, Yours: 10}, p.b.UMEM().Census()); diff != "" {
		t.Errorf("after Reclaim (-want +got):\n%s", diff)
	}
}

func TestRingsReportImpossiblePositions(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	k.completion.producer.Store(9)
	_, err := s.Rings()
	wantErr(t, err, ErrRingCorrupt)
}
