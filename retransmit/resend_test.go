// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	us  = Time(time.Microsecond)
	rtt = 200 * us
)

// settled is a window whose round trip is measured as 200 µs: the allowance is
// 100 µs, the timeout 5.2 ms. Frames up to 64 are answered, at the time that is
// returned.
func settled(t testing.TB, cfg Config) (*Window, Time) {
	t.Helper()
	if cfg.Silence == 0 {
		cfg.Silence = time.Hour
	}
	w := newWindow(t, cfg)
	var now Time
	for range 64 {
		seq := add(t, w, now)
		now += rtt
		w.Ack(now, seq)
	}
	s, least := w.Stats(), 200*time.Microsecond+max(cfg.MinRTO, 5*time.Millisecond)
	if s.SRTT != 200*time.Microsecond || s.RTO < least || s.RTO > least+time.Microsecond {
		t.Fatalf("SRTT %v, RTO %v", s.SRTT, s.RTO)
	}
	return w, now
}

// TestOvertakenFrameIsRepeated loses frames among others that are answered. Only
// they are repeated, once, when the allowance is over.
func TestOvertakenFrameIsRepeated(t *testing.T) {
	w, now := settled(t, Config{})
	for range 8 { // 65 to 72
		add(t, w, now)
	}
	now += rtt
	for _, seq := range []uint32{66, 67, 69, 70} { // 65 and 68 are lost, 71 and 72 late
		w.Ack(now, seq)
	}
	if next, ok := w.NextDeadline(); !ok || next > now {
		t.Errorf("next deadline %v; there is new evidence now, at %v", next, now)
	}
	expect(t, w, now)
	if next, ok := w.NextDeadline(); !ok || next != now+100*us {
		t.Errorf("next deadline %v, want the end of the allowance, %v", next, now+100*us)
	}
	expect(t, w, now+99*us)
	expect(t, w, now+100*us, 65, 68)
	expect(t, w, now+600*us-1)
	if s := w.Stats(); s.Retransmitted != 2 || s.Probes != 0 || s.Backoffs != 0 {
		t.Errorf("%+v", s)
	}
	for _, seq := range []uint32{65, 68} {
		if e, ok := w.Ack(now+ms, seq); !ok {
			t.Errorf("frame %d: %+v, %v", seq, e, ok)
		}
	}
	if e, ok := w.Ack(now+ms, 71); !ok {
		t.Errorf("frame 71: %+v, %v", e, ok)
	}
}

// TestLostRepetitionIsRepeated loses frame 65 and its first repetition: frames
// that are sent after that show it. The allowance doubles.
func TestLostRepetitionIsRepeated(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now)
	overtake := func() {
		seq := add(t, w, now)
		now += rtt
		w.Ack(now, seq)
	}
	overtake()
	for _, allowance := range []Time{100 * us, 200 * us, 400 * us, 800 * us, 1600 * us, 3200 * us} {
		sent := now - rtt
		if allowance > 100*us {
			// Answers to frames that were sent before the repetition are no evidence.
			expect(t, w, now+allowance)
			now += 50 * us
			sent = now - 50*us
			overtake()
		}
		due := sent + rtt + allowance
		expect(t, w, due-1)
		expect(t, w, due, 65)
		now = due
		w.loss.losing = 0
	}
	// As long as the timeout, and no longer.
	now += 50 * us
	sent := now - 50*us
	overtake()
	rto := Time(w.Stats().RTO)
	expect(t, w, sent+rtt+rto-1)
	expect(t, w, sent+rtt+rto, 65)
}

// TestLostWindowIsRepaired loses all frames of a window, with nothing more to
// send: each timeout repeats twice as many as the one before, without backing off
// further, because the peer answers.
func TestLostWindowIsRepaired(t *testing.T) {
	w, now := settled(t, Config{})
	for range 40 {
		add(t, w, now)
	}
	want := 1
	for w.Outstanding() > 0 {
		deadline, _ := w.NextDeadline()
		if seqs := resent(t, w, deadline-1); len(seqs) > 0 {
			t.Fatalf("%v resent early", seqs)
		}
		seqs := resent(t, w, deadline)
		if left := w.Outstanding(); len(seqs) != min(want, left) || seqs[0] != w.Base() {
			t.Fatalf("%d frames resent from %d, want %d from %d", len(seqs), seqs[0], min(want, left), w.Base())
		}
		now = deadline + rtt
		for _, seq := range seqs {
			w.Ack(now, seq)
		}
		want *= 2
	}
	if s := w.Stats(); s.Retransmitted != 40 || s.Backoffs != 1 {
		t.Errorf("%+v; want each frame repeated once and one backoff", s)
	}
	// Afterwards it begins with one again.
	seq := add(t, w, now)
	now += rtt
	w.Ack(now, seq)
	add(t, w, now)
	add(t, w, now)
	deadline, _ := w.NextDeadline()
	expect(t, w, deadline, w.Base())
}

// TestNewFramesRepairALostWindow is the same with more to send: the answers to
// the frames that the first repair makes room for show the losses.
func TestNewFramesRepairALostWindow(t *testing.T) {
	w, now := settled(t, Config{Size: 64})
	for !w.Full() {
		add(t, w, now)
	}
	deadline, _ := w.NextDeadline()
	expect(t, w, deadline, 65)
	now = deadline + rtt
	w.Ack(now, 65)
	seq := add(t, w, now)
	now += rtt
	w.Ack(now, seq)
	if n := len(resent(t, w, now)); n != 63 {
		t.Errorf("%d frames resent, want the 63 that were lost", n)
	}
}

// TestUnsentFramesAreNotRepeated adds frames that the network does not take.
func TestUnsentFramesAreNotRepeated(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Minute})
	for range 3 {
		w.Add(0, Entry{Cookie: uint64(w.NextSeq())})
	}
	if w.NextUnsent() != 1 {
		t.Fatalf("next unsent %d", w.NextUnsent())
	}
	if next, ok := w.NextDeadline(); !ok || next <= 0 || next > Time(time.Minute) {
		t.Errorf("next deadline %v, %v; want one before the limit of silence", next, ok)
	}
	expect(t, w, 1000*ms)
	// The timer runs from when the first is sent.
	w.Sent(1000*ms, 1)
	expect(t, w, 1020*ms-1)
	expect(t, w, 1020*ms, 1)
	w.Sent(1030*ms, 5) // more than there are
	if w.NextUnsent() != 4 {
		t.Errorf("next unsent %d", w.NextUnsent())
	}
	// And the round trip too.
	w.Ack(1033*ms, 3)
	if s := w.Stats(); s.SRTT != 3*time.Millisecond {
		t.Errorf("SRTT %v, want 3ms", s.SRTT)
	}
}

// TestFullRingLeavesFramesDue refuses to resend, in a repair and in a probe.
func TestFullRingLeavesFramesDue(t *testing.T) {
	w, now := settled(t, Config{})
	for range 5 {
		add(t, w, now)
	}
	now += rtt
	w.Ack(now, 69)
	now += 100 * us
	calls := 0
	w.Resend(now, func(uint32, Entry) bool { calls++; return calls < 3 })
	if calls != 3 {
		t.Fatalf("%d frames offered, want 3", calls)
	}
	if next, ok := w.NextDeadline(); !ok || next > now {
		t.Fatalf("next deadline %v, %v; two frames are due now", next, ok)
	}
	expect(t, w, now, 67, 68)
	if s := w.Stats(); s.Retransmitted != 4 {
		t.Fatalf("%d retransmissions counted, want 4", s.Retransmitted)
	}
	for seq := range Time(4) {
		w.Ack(now, uint32(65+seq))
	}

	w.loss.losing = 0
	add(t, w, now)
	now += 10 * ms
	full := func(uint32, Entry) bool { return false }
	w.Resend(now, full)
	if next, ok := w.NextDeadline(); !ok || next > now {
		t.Fatalf("next deadline %v, %v; the probe is due now", next, ok)
	}
	if s := w.Stats(); s.Backoffs != 0 || s.Probes != 0 {
		t.Errorf("%+v: nothing was sent", s)
	}
	expect(t, w, now, 70)
	if s := w.Stats(); s.Backoffs != 1 || s.Probes != 1 {
		t.Errorf("%+v", s)
	}
}

// TestFullRingIsAskedOnce refuses a repair when the timeout has passed too: the oldest frame is
// not offered a second time, as a probe, which would count the path as slow.
func TestFullRingIsAskedOnce(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now)
	w.Ack(now+rtt, add(t, w, now))
	now += 30 * ms // the caller was busy
	calls := 0
	w.Resend(now, func(uint32, Entry) bool { calls++; return calls > 1 })
	if s := w.Stats(); calls != 1 || s.Probes != 0 || s.Backoffs != 0 {
		t.Errorf("%d frames offered, %+v", calls, s)
	}
	expect(t, w, now, 65)
	if s := w.Stats(); s.Retransmitted != 1 || s.Probes != 0 || s.Backoffs != 0 {
		t.Errorf("%+v", s)
	}
}

// TestNextDeadlineLeadsToEveryRetransmission sleeps from deadline to deadline.
func TestNextDeadlineLeadsToEveryRetransmission(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Hour})
	if _, ok := w.NextDeadline(); ok {
		t.Fatal("an empty window has a deadline")
	}
	add(t, w, 5*ms)
	var at []time.Duration
	wakeups := 0
	for len(at) < 4 {
		now, ok := w.NextDeadline()
		if !ok {
			t.Fatal("no deadline with a frame outstanding")
		}
		wakeups++
		if err := w.Check(now); err != nil {
			t.Fatal(err)
		}
		if len(resent(t, w, now)) > 0 {
			at = append(at, time.Duration(now))
		}
	}
	if diff := cmp.Diff([]time.Duration{25e6, 65e6, 145e6, 305e6}, at); diff != "" {
		t.Errorf("retransmitted at (-want +got):\n%s", diff)
	}
	if wakeups > 8 {
		t.Errorf("%d wake-ups for 4 retransmissions", wakeups)
	}
}

// TestLateSecondAnswers come when the frame's place may be another's.
func TestLateSecondAnswers(t *testing.T) {
	for _, c := range []struct {
		later    int // frames that are added before the second answer
		spurious uint64
	}{{1, 1}, {2, 1}, {3, 0}, {4, 0}, {9, 0}} {
		w, now := settled(t, Config{Size: 4})
		add(t, w, now) // 65
		now += rtt
		w.Ack(now, add(t, w, now-rtt)) // 66
		now += ms
		expect(t, w, now, 65)
		w.Ack(now, 65)
		for range c.later {
			// Each of them is repeated once, and answered once.
			seq := add(t, w, now)
			deadline, _ := w.NextDeadline()
			expect(t, w, deadline, seq)
			now = deadline
			w.Ack(now, seq)
		}
		w.Ack(now, 65)
		w.Ack(now, 65) // made by the network
		if s := w.Stats(); s.Spurious != c.spurious || s.Repeated != 2 {
			t.Errorf("%d frames later: %d needless repetitions counted, want %d", c.later, s.Spurious, c.spurious)
		}
	}
}
