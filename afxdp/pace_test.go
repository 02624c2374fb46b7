// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// No packet is sent before its time, none is lost, and frames come back, with fewer frames
// than packets.
func TestPaceIsNeverEarly(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	const rate, packets, frames = 2000, 100, 8
	g := openAll(t, ns, GroupConfig{Frames: frames, Socket: Config{RxFrames: -1}})
	if id := attachedID(t, ns); id != 0 {
		t.Errorf("program %d is there for sockets that only send", id)
	}
	start, wrote := time.Now(), 0
	err := g.Run(t.Context(), Pace(rate, func(s *Socket, due []Desc) (int, error) {
		n := min(len(due), packets-wrote)
		for i := range due[:n] {
			if room := len(s.UMEM().Packet(due[i])); room != s.UMEM().RxRoom() {
				t.Errorf("room for %d bytes", room)
			}
			due[i].Len = 100
			fillPacket(s.UMEM().Packet(due[i]), uint64(wrote+i))
		}
		wrote += n
		// The first is due at the start, which was after this one.
		if early := time.Duration(wrote-1)*time.Second/rate - time.Since(start); early > 0 {
			t.Errorf("packet %d is early by %v", wrote-1, early)
		}
		if wrote == packets {
			return n, io.EOF
		}
		return n, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	st, err := g.Snapshot()
	if err != nil || st.TxSubmitted != packets || st.TxCompleted != packets {
		t.Errorf("%d sent, %d transmitted, %v", st.TxSubmitted, st.TxCompleted, err)
	}
	if free := g.Sockets()[0].Pool().Available(); free != frames {
		t.Errorf("%d of %d frames are free", free, frames)
	}
}

// A loop that was kept from running catches up only a little.
func TestPaceForgetsDelays(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 512, ring: 64})
	p := pacing{s: s, rate: 1000, start: time.Now().Add(-time.Hour), frames: make([]Frame, serveBatch), packets: make([]Desc, 0, serveBatch)}
	due, err := p.awaitDue()
	if most := int(p.rate*paceBehind.Seconds()) + 1; err != nil || due < most-1 || due > most {
		t.Errorf("%d packets are due, %v, want those of the last %v, at most %d", due, err, paceBehind, most)
	}
	if late := time.Since(p.start); late > time.Minute {
		t.Errorf("still late by %v", late)
	}
}

func TestPaceErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		rate  float64
		wrote int
		err   error
		want  error
	}{
		{0, 0, nil, ErrConfig}, {-1, 0, nil, ErrConfig}, {math.NaN(), 0, nil, ErrConfig}, {math.Inf(1), 0, nil, ErrConfig},
		{1e6, -1, nil, ErrConfig}, {1e6, 1000, nil, ErrConfig}, {1e6, 0, broken, broken},
		{math.MaxFloat64, 0, broken, broken},
	} {
		s, _ := newSim(t, simConfig{frames: 512, ring: 64})
		err := Pace(c.rate, func(*Socket, []Desc) (int, error) { return c.wrote, c.err })(s)
		if !errors.Is(err, c.want) {
			t.Errorf("rate %v, %d written, %v: %v", c.rate, c.wrote, c.err, err)
		}
	}
}

// Frames of packets without room in the ring when the link went down return to the pool.
func TestPaceKeepsNoFramesWhenItFails(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 8})
	k.onSend = func() unix.Errno { return unix.ENETDOWN }
	p := pacing{s: s, rate: 1e6, start: time.Now(), frames: make([]Frame, serveBatch), packets: make([]Desc, 0, serveBatch)}
	_, err := p.sendDue(20, func(_ *Socket, packets []Desc) (int, error) {
		for i := range packets {
			packets[i].Len = 60
		}
		return 15, nil
	})
	wantErr(t, err, ErrLinkDown)
	if free, queued := s.pool.Available(), s.InFlight(); free != 64-8 || queued != 8 {
		t.Errorf("%d frames are free, %d in flight", free, queued)
	}
}

// Send's error for a packet is returned, and its frame is free again. Packets that it accepted are
// not waited for.
func TestPaceSends(t *testing.T) {
	for length, want := range map[uint32]error{60: nil, 4096: ErrDescriptor} {
		s, k := newSim(t, simConfig{frames: 64, ring: 8})
		k.onRecv = func() unix.Errno { return unix.ENETDOWN } // ends a wait
		p := pacing{s: s, rate: 1e6, start: time.Now(), frames: make([]Frame, serveBatch), packets: make([]Desc, 0, serveBatch)}
		_, err := p.sendDue(1, func(_ *Socket, packets []Desc) (int, error) {
			packets[0].Len = length
			return 1, nil
		})
		if !errors.Is(err, want) || s.pool.Available()+s.InFlight() != 64 {
			t.Errorf("%d bytes: %v, %d frames are free and %d in flight", length, err, s.pool.Available(), s.InFlight())
		}
	}
}

// An error of write is not lost if the link goes down at that moment: after io.EOF the loop, which
// Run calls again, only ends, and another error is returned alone, so that Run ends.
func TestPaceEndsWhenTheLinkIsDown(t *testing.T) {
	own := errors.New("own")
	for _, end := range []error{io.EOF, own} {
		s, k := newSim(t, simConfig{frames: 16, ring: 8})
		down := true
		k.onSend = func() unix.Errno {
			if down {
				return unix.ENETDOWN
			}
			for d, ok := k.transmit(); ok; d, ok = k.transmit() {
				k.complete(d.Addr)
			}
			return 0
		}
		wrote := 0
		loop := Pace(1e6, func(_ *Socket, packets []Desc) (int, error) {
			wrote++
			packets[0].Len = 60
			return 1, end
		})
		err := loop(s)
		if errors.Is(end, own) {
			if !errors.Is(err, own) || errors.Is(err, ErrLinkDown) {
				t.Errorf("the loop returns %v, want %v", err, own)
			}
			continue
		}
		wantErr(t, err, ErrLinkDown)
		down = false
		for range 2 { // the second one starts again
			if err := loop(s); err != nil {
				t.Error(err)
			}
		}
		if sent := s.out.count.TxCompleted; wrote != 2 || sent != 2 {
			t.Errorf("write was called %d times, %d packets were sent; want 2", wrote, sent)
		}
	}
}
