// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"

	"github.com/libra-ina/libra/wire"
)

// A filter that has refused the later frame of a place does not know what became of the earlier
// one, and does not say that it was applied.
func TestRefusalHidesTheFrameBefore(t *testing.T) {
	var f Filter
	const seq, later = wire.FirstSeq + 5, wire.FirstSeq + 5 + 2*wire.DefaultWindow
	f.Mark(seq)
	f.Refuse(later, wire.Refusal{Code: wire.CodeOverflow})
	if f.Applied(seq) || f.Applied(later) || f.Fresh(seq) || f.Fresh(later) {
		t.Errorf("applied %v, %v; fresh %v, %v", f.Applied(seq), f.Applied(later), f.Fresh(seq), f.Fresh(later))
	}
	if _, refused := f.Refusal(seq); refused {
		t.Error("the earlier frame was refused")
	}
	if cover := f.Cover(seq); cover&bit(seq, seq) != 0 {
		t.Errorf("a cover of frame %d shows it: %b", seq, cover)
	}
	f.Mark(later + 2*wire.DefaultWindow)
	if _, refused := f.Refusal(later); refused || !f.Applied(later+2*wire.DefaultWindow) {
		t.Error("the newest frame of the place does not count")
	}
}

// A frame that was probed twice and is answered twice may have lost a copy: the path stays one that
// loses frames.
func TestProbedTwiceAnsweredTwice(t *testing.T) {
	w, now := losing(t)
	add(t, w, now) // 67
	now += early
	expect(t, w, now, 67)
	now += Time(w.Stats().RTO)
	expect(t, w, now, 67)
	w.Ack(now+rtt, 67)
	w.Ack(now+2*rtt, 67) // of any of the three
	now += 2 * rtt
	add(t, w, now) // 68
	expect(t, w, now+early-1)
	expect(t, w, now+early, 68)
}

// A repetition that is due earlier than a frame sent once after it decides when to look again.
func TestRepetitionIsDueBeforeAFrameSentOnce(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now) // 65, lost
	add(t, w, now)
	now += rtt
	w.Ack(now, 66)
	now += 100 * us
	expect(t, w, now, 65)
	due := now + rtt + 200*us // the allowance has doubled
	now += 150 * us
	add(t, w, now) // 67, which would be due 50 µs later
	now += 10 * us
	add(t, w, now)
	now += rtt
	w.Ack(now, 68)
	expect(t, w, now)
	if next, ok := w.NextDeadline(); !ok || next != due {
		t.Errorf("the next deadline is %v after the time at which frame 65 is due", next-due)
	}
	expect(t, w, due-1)
	expect(t, w, due, 65)
	expect(t, w, due+50*us, 67)
}
