// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// bit is the bit of a cover that stands for frame other in the answer to frame seq.
func bit(seq, other uint32) uint64 { return 1 << (seq + wire.CoverAhead - other) }

// covered acknowledges frame seq with a cover and returns the frames that it acknowledges.
func covered(w *Window, now Time, seq uint32, cover uint64) (taken []uint32) {
	w.Cover(now, seq, cover, func(e Entry) { taken = append(taken, uint32(e.Cookie)) })
	return taken
}

// TestCoverTakesWhatItNames covers frames on both sides of the answered one, some that are already
// answered, one that needs its own answer, and some that were never sent.
func TestCoverTakesWhatItNames(t *testing.T) {
	w := newWindow(t, Config{})
	for range 50 {
		add(t, w, 0)
	}
	own, ok := w.Add(0, Entry{Cookie: 51, NeedsOwnAnswer: true})
	w.Sent(0, 1)
	if _, acked := w.Ack(ms, 3); !ok || !acked {
		t.Fatal("frame 3 is not outstanding")
	}
	cover := bit(40, own) | bit(40, 50) | bit(40, 40) | bit(40, 39) | bit(40, 9)
	if diff := cmp.Diff([]uint32{50, 40, 39, 9}, covered(w, ms, 40, cover)); diff != "" {
		t.Errorf("covered by the answer to 40 (-want +got):\n%s", diff)
	}
	if taken := covered(w, ms, 40, cover); taken != nil {
		t.Errorf("covered again: %v", taken)
	}
	if taken := covered(w, ms, 51, bit(51, 52)|bit(51, 82)); taken != nil {
		t.Errorf("frames %v are covered that were never sent", taken)
	}
	if taken := covered(w, ms, 1, ^uint64(0)); len(taken) != 30 || w.Base() != 33 {
		t.Errorf("%v are covered, base is %d; want 1 to 32 but 3 and 9", taken, w.Base())
	}
	s := w.Stats()
	if s.Acked != 35 || s.Covered != 34 || s.Unknown != 2 || s.Repeated != 0 || w.Outstanding() != 51-35 {
		t.Errorf("%+v, %d outstanding", s, w.Outstanding())
	}
}

// TestCoverShowsALoss covers all frames except one, none of which requests an answer: that one is
// repeated when the allowance for reordering has expired.
func TestCoverShowsALoss(t *testing.T) {
	w, now := settled(t, Config{})
	for range 8 { // 65 to 72
		add(t, w, now)
	}
	now += rtt
	covered(w, now, 72, bit(72, 65)|bit(72, 66)|bit(72, 68)|bit(72, 69)|bit(72, 70)|bit(72, 71))
	w.Ack(now, 72)
	expect(t, w, now)
	expect(t, w, now+100*us, 67)
}

// TestRepetitionCoversWhatWasSentOnce lets the answer to a repeated frame cover others that were
// sent once. Since those had their own answers, they show which frame was lost, and that the peer
// does not need all of them again.
func TestRepetitionCoversWhatWasSentOnce(t *testing.T) {
	w, now := settled(t, Config{})
	for range 40 { // 65 to 104
		add(t, w, now)
	}
	deadline, _ := w.NextDeadline()
	expect(t, w, deadline, 65)
	w.Ack(deadline+rtt, 65)
	deadline, _ = w.NextDeadline()
	expect(t, w, deadline, 66, 67) // twice as many, until one is answered that was sent once
	now = deadline + rtt
	w.Ack(now, 67)
	w.Ack(now, 66)
	covered(w, now, 67, bit(67, 68))
	deadline, _ = w.NextDeadline()
	expect(t, w, deadline, 69)
	now = deadline + rtt
	w.Ack(now, 69)
	covered(w, now, 69, bit(69, 71)|bit(69, 72))
	expect(t, w, now)
	expect(t, w, now+100*us, 70)
}

// TestLateCoverNamesNoNewFrame covers frames that left the window long ago: the frames that have
// their places now stay.
func TestLateCoverNamesNoNewFrame(t *testing.T) {
	w := newWindow(t, Config{Size: 64})
	for range 64 {
		add(t, w, 0)
	}
	if taken := covered(w, ms, 64-wire.CoverAhead, ^uint64(0)); len(taken) != 64 {
		t.Fatalf("%d frames are covered, want 1 to 64", len(taken))
	}
	for range 64 {
		add(t, w, ms)
	}
	if taken := covered(w, 2*ms, 64-wire.CoverAhead, ^uint64(0)); taken != nil || w.Outstanding() != 64 {
		t.Errorf("a late copy of the first cover takes %v", taken)
	}
}

// TestCoverOfUnsentFramesTakesNone covers frames that wait for the link, as a peer may that
// remembers an earlier admission's numbers: they are still to be sent.
func TestCoverOfUnsentFramesTakesNone(t *testing.T) {
	w := newWindow(t, Config{})
	sent := add(t, w, 0)
	waits, ok := w.Add(0, Entry{Cookie: uint64(w.NextSeq())})
	if !ok {
		t.Fatal("window is full")
	}
	if taken := covered(w, ms, sent, bit(sent, sent)|bit(sent, waits)); !cmp.Equal(taken, []uint32{sent}) {
		t.Errorf("frames %v are covered, want %d alone", taken, sent)
	}
	if s := w.Stats(); s.Unknown != 1 || w.Outstanding() != 1 || w.NextUnsent() != waits {
		t.Errorf("%+v, %d outstanding, %d is the next to be sent", s, w.Outstanding(), w.NextUnsent())
	}
	w.Sent(ms, 1)
	if taken := covered(w, 2*ms, waits, bit(waits, waits)); !cmp.Equal(taken, []uint32{waits}) {
		t.Errorf("frames %v are covered, want %d, which is sent now", taken, waits)
	}
}

// TestCoverIsTheFilter compares a cover with the marked frames.
func TestCoverIsTheFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f Filter
		marked := map[uint32]bool{}
		for _, n := range rapid.SliceOfN(rapid.Uint32Range(wire.FirstSeq, wire.DefaultWindow), 0, 600).Draw(t, "marked") {
			if f.Fresh(n) {
				f.Mark(n)
				marked[n] = true
			}
		}
		seq := rapid.Uint32Range(33, wire.DefaultWindow-32).Draw(t, "asked")
		cover := f.Cover(seq)
		for other := seq - 32; other != seq+32; other++ {
			if got := cover&bit(seq, other) != 0; got != marked[other] {
				t.Fatalf("the answer to %d says %v of %d, which is %v", seq, got, other, marked[other])
			}
		}
	})
}

// A cover of a frame with two copies does not tell which of them arrived (Karn's rule), so nothing
// was overtaken.
func TestCoverOfARepeatedFrameShowsNoLoss(t *testing.T) {
	w, now := settled(t, Config{})
	lost, answered, later := add(t, w, now), add(t, w, now), add(t, w, now)
	w.Ack(now+rtt, answered)
	now += rtt + 100*us
	expect(t, w, now, lost)
	w.Cover(now+10*us, lost, 1<<wire.CoverAhead, func(Entry) {})
	if _, ok := w.Ack(now+15*us, lost); ok {
		t.Fatal("the frame was not covered")
	}
	expect(t, w, now+20*us)
	w.Ack(now+20*us, later)
}
