// SPDX-License-Identifier: Apache-2.0

package retransmit

import "testing"

// early is the timeout of a settled window on a path that loses frames: two round trips and the
// least allowance.
const early = 2*rtt + 100*us

// losing is a settled window whose path has just lost frame 65, which is repaired.
// Frame 66 was the next one, and none is outstanding.
func losing(t *testing.T) (*Window, Time) {
	t.Helper()
	w, now := settled(t, Config{})
	add(t, w, now)
	add(t, w, now)
	now += rtt
	w.Ack(now, 66)
	now += 100 * us
	expect(t, w, now, 65)
	w.Ack(now+rtt, 65)
	return w, now + rtt
}

// TestLostTailIsProbedEarly loses the last frame, and its first repetition. Only where the path
// loses frames is it repeated before the retransmission timeout, and once.
func TestLostTailIsProbedEarly(t *testing.T) {
	w, now := settled(t, Config{})
	add(t, w, now)
	expect(t, w, now+early)

	w, now = losing(t)
	add(t, w, now) // 67
	if next, ok := w.NextDeadline(); !ok || next != now+early {
		t.Errorf("next deadline %v after, want %v", next-now, early)
	}
	expect(t, w, now+early-1)
	expect(t, w, now+early, 67)
	now += early
	s := w.Stats()
	if s.Probes != 1 || s.Backoffs != 0 {
		t.Errorf("%+v", s)
	}
	rto := Time(s.RTO)
	expect(t, w, now+rto-1)
	expect(t, w, now+rto, 67)
	if s := w.Stats(); s.Probes != 2 || s.Backoffs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLostTailOfManyFrames is repaired within a few round trips: with each that only
// repetitions are answered in, twice the frames are repeated.
func TestLostTailOfManyFrames(t *testing.T) {
	w, now := losing(t)
	for range 12 { // 67 to 78
		add(t, w, now)
	}
	for _, want := range [][]uint32{{67}, {68, 69}, {70, 71, 72, 73}, {74, 75, 76, 77, 78}} {
		now += early
		expect(t, w, now, want...)
		now += rtt
		for _, seq := range want {
			w.Ack(now, seq)
		}
	}
	if s := w.Stats(); w.Outstanding() != 0 || s.Backoffs != 0 || s.RTO > 6*1e6 {
		t.Errorf("%d outstanding, %+v", w.Outstanding(), s)
	}
}

// TestNeedlessProbeEndsHaste answers a frame that was probed early for each of its copies: the peer
// had to wait, and more probes would not help it.
func TestNeedlessProbeEndsHaste(t *testing.T) {
	w, now := losing(t)
	add(t, w, now)
	expect(t, w, now+early, 67)
	now += early + rtt
	w.Ack(now, 67)
	w.Ack(now, 67)
	seq := add(t, w, now)
	expect(t, w, now+early)
	expect(t, w, now+Time(w.Stats().RTO), seq)
}

// TestNeedlessRepairEndsHaste does the same after a repair.
func TestNeedlessRepairEndsHaste(t *testing.T) {
	w, now := losing(t)
	w.Ack(now, 65) // which was only late
	seq := add(t, w, now)
	expect(t, w, now+early)
	expect(t, w, now+Time(w.Stats().RTO), seq)
}

// TestLossIsForgotten after a number of transmissions without another: the last of them may still
// be lost, the next one is the peer's to wait for.
func TestLossIsForgotten(t *testing.T) {
	for _, since := range []int{lossMemory - 1, lossMemory} {
		w, now := losing(t)
		for range since - 1 {
			w.Ack(now+rtt, add(t, w, now))
			now += rtt
		}
		last := add(t, w, now)
		if since < lossMemory {
			expect(t, w, now+early, last)
			continue
		}
		expect(t, w, now+early)
		expect(t, w, now+Time(w.Stats().RTO), last)
	}
}

// TestSlowPathIsNotProbedEarlier keeps the timeout where it is less than two round trips.
func TestSlowPathIsNotProbedEarlier(t *testing.T) {
	const slow = 20 * ms
	w := newWindow(t, Config{Silence: 1e12})
	var now Time
	for range 64 {
		seq := add(t, w, now)
		now += slow
		w.Ack(now, seq)
	}
	w.loss.losing = w.loss.order + lossMemory
	seq := add(t, w, now)
	rto := Time(w.Stats().RTO)
	if rto >= 2*slow {
		t.Fatalf("RTO %v", rto)
	}
	expect(t, w, now+rto, seq)
	if s := w.Stats(); s.Backoffs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTimeoutShowsLoss loses one frame at a time, each the only one on its way, so that no later
// answer tells of it. The first is repeated at the retransmission timeout, which only one copy's
// answer confirms, and those after it early. If both copies are answered, the peer was slow.
func TestTimeoutShowsLoss(t *testing.T) {
	for _, slow := range []bool{false, true} {
		w, now := settled(t, Config{})
		seq := add(t, w, now)
		expect(t, w, now+early)
		now += Time(w.Stats().RTO)
		expect(t, w, now, seq)
		now += rtt
		w.Ack(now, seq)
		if slow {
			w.Ack(now, seq)
		}
		seq = add(t, w, now)
		if slow {
			expect(t, w, now+early)
			now += Time(w.Stats().RTO)
		} else {
			now += early
		}
		expect(t, w, now, seq)
	}
}
