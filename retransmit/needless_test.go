// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"
)

// pass lets time pass up to end, and frames are repeated when due.
func pass(t *testing.T, w *Window, now, end Time, repeat func(uint32, Entry) bool) Time {
	t.Helper()
	for now < end {
		d, _ := w.NextDeadline()
		if now = max(now, min(d, end)); now < end {
			if err := w.Check(now); err != nil {
				t.Fatal(err)
			}
			w.Resend(now, repeat)
		}
	}
	return end
}

// TestSecondAnswerInAFullWindow has a peer that is late for every fourth window, and loses nothing.
// The answer to the second copy of the frame that a timeout repeated arrives when later frames have
// taken all places; it still shows that the peer was slow.
func TestSecondAnswerInAFullWindow(t *testing.T) {
	for _, size := range []int{1, 4, 16, 512} {
		w, err := NewWindow(Config{Size: size, Silence: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		var now Time
		var again []uint32
		repeat := func(seq uint32, _ Entry) bool { again = append(again, seq); return true }
		fill := func() (seqs []uint32) {
			for !w.Full() {
				seqs = append(seqs, add(t, w, now))
			}
			return seqs
		}
		out := fill()
		for i := range 400 {
			late := rtt
			switch {
			case i == 99:
				late = 6 * ms // the one timeout
			case i > 99 && i%4 == 0:
				late = 2 * ms
			}
			now = pass(t, w, now, now+late, repeat)
			var next []uint32
			for _, seq := range out { // in the order in which they were sent
				w.Ack(now, seq)
				next = append(next, fill()...)
			}
			for _, seq := range again {
				w.Ack(now, seq)
			}
			out, again = next, again[:0]
		}
		if s := w.Stats(); s.Retransmitted > 3 {
			t.Errorf("window of %d: %d of %d frames were repeated, all in vain", size, s.Retransmitted, s.Sent)
		}
	}
}

// TestPathThatBecomesSlower has round trips of 3 ms from a timeout on. The frames, of which one is
// in flight at a time, must not all be sent twice for ever.
func TestPathThatBecomesSlower(t *testing.T) {
	for _, size := range []int{1, 512} {
		w, now := settled(t, Config{Size: size})
		for i := range 200 {
			late := 3 * ms
			if i == 0 {
				late = 6 * ms
			}
			copies := 1
			seq := add(t, w, now)
			if i > 0 && size == 1 { // the second copy of the frame before, if there was one
				w.Ack(now, seq-1)
			}
			now = pass(t, w, now, now+late, func(uint32, Entry) bool { copies++; return true })
			w.Ack(now, seq)
			if copies > 1 && size > 1 {
				w.Ack(now, seq)
			}
		}
		if s := w.Stats(); s.Retransmitted > 3 {
			t.Errorf("window of %d: %d of 200 frames were repeated, all in vain", size, s.Retransmitted)
		}
	}
}

// TestEachTimeoutRenewsTheMemoryOfLosses sometimes loses a frame that is alone in flight, for
// longer than one loss is remembered. Only the first waits for the retransmission timeout.
func TestEachTimeoutRenewsTheMemoryOfLosses(t *testing.T) {
	w, now := settled(t, Config{})
	for i := range 4 {
		seq := add(t, w, now)
		if i == 0 {
			now += Time(w.Stats().RTO)
		} else {
			now += early
		}
		expect(t, w, now, seq)
		now += rtt
		w.Ack(now, seq)
		for range lossMemory / 2 {
			seq := add(t, w, now)
			now += rtt
			w.Ack(now, seq)
		}
	}
}

// TestAnswerToAFrameWhosePlaceIsTaken arrives late and does not affect the frame that has the place
// now and was repeated.
func TestAnswerToAFrameWhosePlaceIsTaken(t *testing.T) {
	w := newWindow(t, Config{Size: 4})
	var now Time
	for range 4 {
		add(t, w, now)
	}
	w.Ack(rtt, 1)
	add(t, w, rtt) // 5, in the place of 1
	for seq := range uint32(3) {
		w.Ack(rtt, 2+seq)
	}
	now = rtt + Time(w.Stats().RTO)
	expect(t, w, now, 5)
	losing := w.loss.losing
	w.Ack(now, 5)
	w.Ack(now, 1)
	if w.loss.losing != losing || w.Stats().Spurious != 0 {
		t.Errorf("%+v, %+v", w.loss, w.Stats())
	}
}
