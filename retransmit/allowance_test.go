// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"
)

// TestReorderingStretchesTheAllowance overtakes frames by less and by more than
// the allowance. Needless repetitions double it, once a round trip.
func TestReorderingStretchesTheAllowance(t *testing.T) {
	w, now := settled(t, Config{})
	// round has one frame overtaken for a time, and returns whether it was repeated.
	round := func(by Time) bool {
		late := add(t, w, now)
		other := add(t, w, now)
		w.Ack(now+rtt, other)
		n := len(resent(t, w, now+rtt)) + len(resent(t, w, now+rtt+by))
		w.Ack(now+rtt+by, late)
		if n > 0 {
			w.Ack(now+2*rtt+by, late) // the answer to the other copy
		}
		now += ms
		return n > 0
	}
	for i, c := range []struct {
		by   Time
		want bool
	}{{99 * us, false}, {100 * us, true}, {199 * us, false}, {200 * us, true}, {399 * us, false}, {400 * us, true}, {799 * us, false}} {
		if got := round(c.by); got != c.want {
			t.Fatalf("round %d: overtaken by %v, repeated: %v", i, time.Duration(c.by), got)
		}
	}
	if s := w.Stats(); s.Spurious != 3 || s.Repeated != 3 {
		t.Errorf("%+v", s)
	}
	// Sixteen repairs that were needed end it. 1.6 ms is the largest allowance.
	for range 16 {
		lost := add(t, w, now)
		w.Ack(now+rtt, add(t, w, now))
		resent(t, w, now+rtt)
		expect(t, w, now+rtt+800*us, lost)
		now += 2 * ms
		w.Ack(now, lost)
	}
	if !round(100 * us) {
		t.Error("the allowance is still stretched after 16 repairs")
	}
}

// TestReorderingIsBounded wrongly declares hundreds of frames lost, in one round trip and in many.
func TestReorderingIsBounded(t *testing.T) {
	w, now := settled(t, Config{})
	for rounds := range 10 {
		first := w.NextSeq()
		for range 32 {
			add(t, w, now)
		}
		last := add(t, w, now)
		now += rtt
		w.Ack(now, last)
		now += 5 * ms // less than a timeout
		if n := len(resent(t, w, now)); n != 32 {
			t.Fatalf("round %d: %d frames resent", rounds, n)
		}
		for seq := first; seq != last; seq++ {
			for range 3 { // two copies, and one that the network has made
				w.Ack(now, seq)
			}
		}
		if want := min(2<<rounds, maxReordering); w.loss.reordering != want {
			t.Errorf("factor %d after %d round trips with reordering, want %d", w.loss.reordering, rounds+1, want)
		}
	}
	if s := w.Stats(); s.Spurious != 320 {
		t.Errorf("%d needless repetitions counted, want 320", s.Spurious)
	}
}

// TestManyRepetitions repeats one frame until the allowance stops growing.
func TestManyRepetitions(t *testing.T) {
	w, now := settled(t, Config{MinRTO: 15 * time.Millisecond, InitialRTO: 20 * time.Millisecond})
	lost := add(t, w, now)
	allowance := 100 * us
	for n := range 12 {
		seq := add(t, w, now)
		w.Ack(now+rtt, seq)
		base := w.frames[w.index(lost)].Last
		expect(t, w, base+rtt+allowance-1)
		expect(t, w, base+rtt+allowance, lost)
		w.loss.losing = 0
		now = base + rtt + allowance
		if n < 7 {
			allowance *= 2 // up to 12.8 ms
		}
	}
}

// TestAllowanceFollowsTheRoundTrip has frames overtaken on a slow path: they may be
// late by a quarter of the round trip.
func TestAllowanceFollowsTheRoundTrip(t *testing.T) {
	const slow = 8 * ms
	w := newWindow(t, Config{Silence: time.Hour})
	var now Time
	for range 64 {
		seq := add(t, w, now)
		now += slow
		w.Ack(now, seq)
	}
	lost := add(t, w, now)
	seq := add(t, w, now+ms)
	w.Ack(now+ms+slow, seq)
	// The round trip of the answered frame counts, from when the lost one was sent.
	expect(t, w, now+slow+2*ms-1)
	if next, ok := w.NextDeadline(); !ok || next != now+slow+2*ms {
		t.Errorf("next deadline %v, want %v", next-now, slow+2*ms)
	}
	expect(t, w, now+slow+2*ms, lost)
}

// The allowance also grows in the second half of the number space, if the path has begun to reorder
// frames only there.
func TestReorderingAfterManyFrames(t *testing.T) {
	w, now := settled(t, Config{})
	start := uint32(1<<31 + 100)
	w.base, w.unsent, w.next = start, start, start
	w.limit.round, w.rtt.round = start, start
	late, other := add(t, w, now), add(t, w, now)
	w.Ack(now+rtt, other)
	expect(t, w, now+rtt)
	expect(t, w, now+rtt+100*us, late)
	w.Ack(now+rtt+101*us, late)
	w.Ack(now+2*rtt, late) // to the other copy
	if s := w.Stats(); s.Spurious != 1 || w.loss.reordering != 2 {
		t.Errorf("%d needless retransmissions, the allowance has grown %d times", s.Spurious, w.loss.reordering)
	}
}
