// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// probed sends frames that are all lost, and returns the window after two timeouts: 65 is answered
// after the first one, and 66 and 67 are repeated at the second, which doubled the burst. The next
// one is of four.
func probed(t *testing.T, frames int) (*Window, Time) {
	t.Helper()
	w, now := settled(t, Config{})
	for range frames {
		add(t, w, now)
	}
	now, _ = w.NextDeadline()
	expect(t, w, now, 65)
	w.Ack(now, 65)
	now, _ = w.NextDeadline()
	expect(t, w, now, 66, 67)
	return w, now
}

// TestProbePassesAnsweredFrames has a gap in the window: answered frames are not repeated, and do
// not count in the burst.
func TestProbePassesAnsweredFrames(t *testing.T) {
	w, now := probed(t, 8)
	w.Ack(now, 67)
	now, _ = w.NextDeadline()
	expect(t, w, now, 66, 68, 69, 70)
	if s := w.Stats(); s.Probes != 7 || s.Retransmitted != 7 || s.Backoffs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestFullRingEndsAProbe has room for one frame of a burst of four: the burst ends there, with no
// other frame out of turn, and the timer restarts.
func TestFullRingEndsAProbe(t *testing.T) {
	w, now := probed(t, 8)
	w.Ack(now, 66)
	w.Ack(now, 67)
	now, _ = w.NextDeadline()
	var seqs []uint32
	w.Resend(now, func(seq uint32, _ Entry) bool {
		seqs = append(seqs, seq)
		return len(seqs) != 2
	})
	if len(seqs) != 2 || seqs[0] != 68 || seqs[1] != 69 {
		t.Errorf("frames %v are offered, want 68 and 69", seqs)
	}
	if s := w.Stats(); s.Probes != 4 {
		t.Errorf("%d probes counted, want 4", s.Probes)
	}
	if err := w.Check(now); err != nil {
		t.Fatal(err)
	}
	if next, ok := w.NextDeadline(); !ok || next <= now {
		t.Errorf("next deadline %v after a probe at %v", next, now)
	}
	w.Ack(now, 68) // so that the network has room for the double of four
	now, _ = w.NextDeadline()
	expect(t, w, now, 69, 70, 71, 72)
}

// TestProbeEndsWithTheSentFrames has frames behind the last sent one, which the link has not taken
// yet: a burst does not reach them, and they are sent once.
func TestProbeEndsWithTheSentFrames(t *testing.T) {
	w, now := probed(t, 3)
	w.Ack(now, 66)
	for range 2 { // 68 and 69
		if _, ok := w.Add(now, Entry{Cookie: uint64(w.NextSeq())}); !ok {
			t.Fatal("window is full")
		}
	}
	now, _ = w.NextDeadline()
	expect(t, w, now, 67)
	w.Sent(now, 2)
	now += rtt
	w.Ack(now, 69)
	w.Ack(now, 67)
	expect(t, w, now+100*us, 68)
	w.Ack(now+rtt, 68)
	if s := w.Stats(); w.Outstanding() != 0 || s.Probes != 4 || s.Spurious != 0 {
		t.Errorf("%d frames outstanding, %+v", w.Outstanding(), s)
	}
}

// TestNothingSentHasNoDeadlineInThePast adds a frame long after the last one and
// does not send it: a caller that sleeps until the deadline does not spin.
func TestNothingSentHasNoDeadlineInThePast(t *testing.T) {
	w, now := settled(t, Config{})
	now += 1000 * ms
	w.Add(now, Entry{})
	if next, ok := w.NextDeadline(); !ok || next != now.Add(w.Stats().RTO) {
		t.Errorf("next deadline %v, %v; want a timeout after %v", next, ok, now)
	}
	expect(t, w, now)
}

// TestStallStaysInTheTimeout answers a window late once, and the rest of it at once:
// the samples of the same round trip do not wash the stall out.
func TestStallStaysInTheTimeout(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now)
	now += 20 * ms
	w.Ack(now, 65)
	late := w.Stats().RTO
	if late < 20*time.Millisecond {
		t.Fatalf("RTO %v after a sample of 20ms", late)
	}
	for range 256 {
		add(t, w, now)
	}
	now += rtt
	for seq := uint32(66); seq < 66+256; seq++ {
		w.Ack(now, seq)
	}
	if rto := w.Stats().RTO; rto < late/2 {
		t.Errorf("RTO %v a round trip after %v", rto, late)
	}
}

// TestUnackedEndsWithItsCaller stops an iteration.
func TestUnackedEndsWithItsCaller(t *testing.T) {
	w := newWindow(t, Config{})
	for range 3 {
		add(t, w, 0)
	}
	w.Ack(0, 1)
	for seq := range w.Unacked() {
		if seq != 2 {
			t.Errorf("the oldest is %d", seq)
		}
		break
	}
}

// TestSlowPeerIsProbed is a peer that stalls for 60 ms with a full window: only
// the oldest frame is repeated, with a timeout that doubles.
func TestSlowPeerIsProbed(t *testing.T) {
	w, start := settled(t, Config{})
	for !w.Full() {
		add(t, w, start)
	}
	var at []time.Duration
	now := start
	for now < start+60*ms {
		now, _ = w.NextDeadline()
		if seqs := resent(t, w, now); len(seqs) > 0 {
			if len(seqs) != 1 || seqs[0] != 65 {
				t.Fatalf("resent %v, want the oldest frame", seqs)
			}
			at = append(at, time.Duration(now-start).Round(time.Millisecond))
		}
		if err := w.Check(now); err != nil {
			t.Fatal(err)
		}
	}
	// 5.2, and then 10.4, 20.8, 41.6 more.
	if diff := cmp.Diff([]time.Duration{5e6, 16e6, 36e6, 78e6}, at); diff != "" {
		t.Errorf("probed at (-want +got):\n%s", diff)
	}
	// Then it answers all, also the copies.
	for _, seq := range []uint32{65, 65, 65, 65, 65} {
		w.Ack(now, seq)
	}
	for w.Outstanding() > 0 {
		w.Ack(now, w.Base())
		expect(t, w, now)
		now += us
	}
	if s := w.Stats(); s.Retransmitted != 4 || s.Probes != 4 || s.Backoffs != 4 || s.Repeated != 4 || s.Spurious != 0 {
		t.Errorf("%+v", s)
	}
}

// TestStubbornFrameBacksOff drops one frame again and again. When the window is
// full and nothing else can be answered, the timeout doubles up to the largest.
func TestStubbornFrameBacksOff(t *testing.T) {
	w := newWindow(t, Config{MaxRTO: 50 * time.Millisecond, Silence: time.Hour})
	add(t, w, 0)
	var at []time.Duration
	for now := Time(0); now < 400*ms; now += ms / 4 {
		if len(resent(t, w, now)) > 0 {
			at = append(at, time.Duration(now))
		}
	}
	want := []time.Duration{20e6, 40e6, 50e6, 50e6, 50e6, 50e6, 50e6, 50e6}
	last := time.Duration(0)
	for i, d := range at {
		if i < len(want) && d-last != want[i] {
			t.Errorf("retransmission %d after %v, want %v", i, d-last, want[i])
		}
		last = d
	}
	if len(at) != len(want) {
		t.Errorf("retransmitted at %v, want %d times", at, len(want))
	}
}

// TestProbedFrameAnsweredTwice is no reordering: the peer was slow.
func TestProbedFrameAnsweredTwice(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now)
	deadline, _ := w.NextDeadline()
	expect(t, w, deadline, 65)
	w.Ack(deadline, 65)
	w.Ack(deadline, 65)
	if s := w.Stats(); s.Repeated != 1 || s.Spurious != 0 || w.loss.reordering != 1 {
		t.Errorf("%+v, factor %d", s, w.loss.reordering)
	}
}

// TestTimerRestartsWithEachAnswer (RFC 6298, section 5.3): frames that were sent
// long ago are not probed as long as others are answered.
func TestTimerRestartsWithEachAnswer(t *testing.T) {
	w, now := settled(t, Config{})
	first := w.NextSeq()
	for range 40 {
		add(t, w, now)
	}
	for range 20 { // answers in order, one each 3 ms
		now += 3 * ms
		w.Ack(now, w.Base())
		expect(t, w, now)
	}
	s := w.Stats()
	if w.Base() != first+20 || s.Retransmitted != 0 {
		t.Fatalf("base %d, %+v", w.Base(), s)
	}
	rto := Time(s.RTO)
	expect(t, w, now+rto-1)
	expect(t, w, now+rto, first+20)
	// A repetition restarts it, too.
	if got := Time(w.Stats().RTO); got != 2*rto {
		t.Errorf("RTO %v after a probe, want %v", got, 2*rto)
	}
	expect(t, w, now+3*rto-1)
	expect(t, w, now+3*rto, first+20)
	// What is added meanwhile does not.
	add(t, w, now+6*rto)
	expect(t, w, now+7*rto, first+20)
}

// TestRepairPostponesTheProbe repeats what was overtaken, and waits for the answers
// before it probes, although the timeout has passed meanwhile.
func TestRepairPostponesTheProbe(t *testing.T) {
	w, now := settled(t, Config{})
	for range 3 {
		add(t, w, now)
	}
	now += rtt
	w.Ack(now, 66)
	late := now + 30*ms // the caller was busy
	expect(t, w, late, 65)
	expect(t, w, late+early-1)
	expect(t, w, late+early, 65)
	if s := w.Stats(); s.Probes != 1 || s.Backoffs != 0 || s.Retransmitted != 2 {
		t.Errorf("%+v", s)
	}
}
