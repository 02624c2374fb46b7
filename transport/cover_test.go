// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// arrived returns the headers of frames that have arrived at a server that never answers.
func arrived(t *testing.T, server *memLink) (headers []wire.Header) {
	t.Helper()
	pkts := make([]link.Packet, 64)
	for {
		n, err := server.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pkts[:n] {
			h, err := wire.ParseHeader(p.Payload)
			if err != nil {
				t.Fatal(err)
			}
			headers = append(headers, h)
		}
		if n == 0 {
			return headers
		}
	}
}

// answerWith sends the worker an answer of its server.
func (p *pausable) answerWith(payload []byte) {
	p.t.Helper()
	p.server.deliver(payload, p.link.Local())
	if _, err := p.turn(); err != nil {
		p.t.Fatal(err)
	}
}

// TestOneAnswerCoversMany pushes forty frames: every sixteenth and the last request an answer, and
// three answers acknowledge all.
func TestOneAnswerCoversMany(t *testing.T) {
	p := newPausable(t, time.Hour)
	push := p.push(40)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	var asking []uint32
	for _, h := range arrived(t, p.server) {
		switch h.Flags {
		case wire.FlagCover:
			asking = append(asking, h.Seq)
		case wire.FlagQuiet:
		default:
			t.Errorf("frame %d has the flags %v", h.Seq, h.Flags)
		}
	}
	if diff := cmp.Diff([]uint32{16, 32, 40}, asking); diff != "" {
		t.Fatalf("frames that ask for an answer (-want +got):\n%s", diff)
	}
	var filter retransmit.Filter
	for seq := range uint32(40) {
		if seq+1 != 20 {
			filter.Mark(seq + 1)
		}
	}
	answer := func(seq uint32) {
		h := wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: seq}
		p.answerWith(wire.PutCover(make([]byte, wire.CoverLen), h, filter.Cover(seq)))
	}
	answer(40) // covers 8 to 40
	if push.acked != 32 || push.outstanding != 8 {
		t.Errorf("%d frames are acknowledged, %d are not, want 32 and 8", push.acked, push.outstanding)
	}
	answer(16)
	if push.outstanding != 1 {
		t.Errorf("%d frames are not acknowledged, want number 20 alone", push.outstanding)
	}
	p.clock += retransmit.Time(50 * time.Millisecond)
	p.answerWith(make([]byte, 1))
	again := arrived(t, p.server)
	if len(again) != 1 || again[0].Seq != 20 || again[0].Flags != wire.FlagCover|wire.FlagRetx {
		t.Fatalf("repeated: %+v, want number 20, which asks for an answer", again)
	}
	filter.Mark(20)
	answer(20)
	select {
	case <-push.ticket.done:
	default:
		t.Error("the push is not done when all its frames are acknowledged")
	}
}

// TestCoverIsNoAnswerToAPull covers a PULL: its rows are still missing.
func TestCoverIsNoAnswerToAPull(t *testing.T) {
	p := newPausable(t, time.Hour)
	pull := &operation{pull: true, keys: []uint64{5}, values: make([]float32, testDim), released: make(chan struct{})}
	p.acceptOperation(pull)
	push := p.push(1)
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	frames := arrived(t, p.server)
	if len(frames) != 2 || frames[0].Type != wire.TypePull || frames[0].Flags != 0 {
		t.Fatalf("%+v; want a PULL without flags and a COLD frame", frames)
	}
	h := frames[1]
	p.answerWith(wire.PutCover(make([]byte, wire.CoverLen), h, ^uint64(0)))
	if push.outstanding != 0 || pull.outstanding != 1 {
		t.Errorf("%d frames of the push and %d of the pull are not answered, want 0 and 1", push.outstanding, pull.outstanding)
	}
}

// TestServerLeavesQuietFramesUnanswered sends quiet frames with a gap in between, then one that
// requests an answer.
func TestServerLeavesQuietFramesUnanswered(t *testing.T) {
	network := newMemNet()
	s, _ := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	const quiet, cover = wire.FlagQuiet, wire.FlagCover
	// Bit 31 stands for the frame itself, the higher ones for those before it. Numbers
	// before the first count as applied.
	for _, f := range []struct {
		seq    uint32
		flags  wire.Flags
		answer bool
		cover  uint64
	}{
		{1, quiet, false, 0},
		{2, quiet, false, 0},
		{4, quiet, true, 0xffff_fffe_8000_0000},
		{5, quiet, false, 0},
		{5, quiet, true, 0xffff_fffd_8000_0000},
		{3, cover | wire.FlagRetx, true, 0xffff_ffff_e000_0000},
		{6, quiet | cover, false, 0},
		{7, cover, true, 0xffff_ffff_8000_0000},
	} {
		h := wire.Header{Flags: f.flags, Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: f.seq}
		answer := c.ask(cold(h, testDim, 1))
		if !f.answer {
			if answer != nil {
				t.Errorf("number %d, %v, is answered with %x", f.seq, f.flags, answer)
			}
			continue
		}
		got, err := wire.ParseHeader(answer)
		if err != nil || got.Type != wire.TypeAck || got.Flags != cover || got.Seq != f.seq || wire.Cover(answer, got) != f.cover {
			t.Errorf("number %d, %v: %+v, cover %x, %v; want %x", f.seq, f.flags, got, wire.Cover(answer, got), err, f.cover)
		}
	}
	h := wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 8}
	if got, err := wire.ParseHeader(c.ask(cold(h, testDim, 1))); err != nil || got.Type != wire.TypeAck || got.Flags != 0 {
		t.Errorf("a frame without flags: %+v, %v, want a plain ACK", got, err)
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Applied != 8 || st.Duplicates != 1 {
		t.Errorf("%+v, %v", st, err)
	}
}
