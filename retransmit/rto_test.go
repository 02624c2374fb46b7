// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"
)

// TestTimeoutFollowsLinux computes the estimator of Linux by hand: three round
// trips with one sample each, of which the second is late and the third early.
func TestTimeoutFollowsLinux(t *testing.T) {
	e := estimator{rto: time.Second, min: 2 * time.Millisecond, max: 10 * time.Second}
	const us = time.Microsecond
	for i, c := range []struct{ rtt, srtt, mdev, rttvar, rto time.Duration }{
		{80_000 * us, 80_000 * us, 40_000 * us, 40_000 * us, 240_000 * us},
		// mdev: 40 + (80-40)/4 = 50, the largest so far.
		{160_000 * us, 90_000 * us, 50_000 * us, 50_000 * us, 290_000 * us},
		// 80 ms early, which counts an eighth: 50 + (80-50)/8/4 = 50.9375.
		{10_000 * us, 80_000 * us, 50_937_500, 50_937_500, 283_750 * us},
		// As expected: mdev shrinks by a quarter to 38.203; rttvar by a quarter of the way there.
		{80_000 * us, 80_000 * us, 38_203_125, 47_753_907, 271_015_628},
	} {
		e.sample(c.rtt, uint32(i), uint32(i))
		if e.srtt != c.srtt || e.mdev != c.mdev || e.rttvar != c.rttvar || e.rto != c.rto {
			t.Fatalf("sample %d: SRTT %v, mdev %v, RTTVAR %v, RTO %v; want %v, %v, %v, %v",
				i, e.srtt, e.mdev, e.rttvar, e.rto, c.srtt, c.mdev, c.rttvar, c.rto)
		}
	}
	for i := range uint32(200) {
		e.sample(10*us, 10+i, 10+i)
	}
	if d := e.rto - e.srtt - e.min; d < 0 || d > us {
		t.Errorf("RTO %v on a fast path, want the least, %v, above the round trip of %v", e.rto, e.min, e.srtt)
	}
	for range 100 {
		e.backoff()
	}
	if e.rto != e.max {
		t.Errorf("RTO %v after many backoffs, want the largest, %v", e.rto, e.max)
	}
	e.sample(10*us, 300, 300)
	if e.rto > e.srtt+e.min+us {
		t.Errorf("RTO %v after a sample, want an end of the backoff", e.rto)
	}
	e.sample(time.Hour, 301, 301)
	if e.rto != e.max {
		t.Errorf("RTO %v after a sample of an hour, want the largest, %v", e.rto, e.max)
	}
}

// TestVarianceOutlivesAWindow has a peer stall once and then answer a window of
// frames quickly: the samples of one round trip do not wash the stall out.
func TestVarianceOutlivesAWindow(t *testing.T) {
	e := estimator{rto: time.Second, min: 5 * time.Millisecond, max: time.Second}
	var seq uint32
	round := func(rtt time.Duration) {
		next := seq + 512
		for ; seq != next; seq++ {
			e.sample(rtt, seq, next)
		}
	}
	for range 20 {
		round(100 * time.Microsecond)
	}
	if e.rto > 6*time.Millisecond {
		t.Fatalf("RTO %v, want about the least", e.rto)
	}
	for range 16 {
		e.sample(20*time.Millisecond, seq, seq+512)
	}
	late := e.rto
	if late < 40*time.Millisecond {
		t.Fatalf("RTO %v after samples of 20ms", late)
	}
	round(100 * time.Microsecond)
	round(100 * time.Microsecond)
	if e.rto < 20*time.Millisecond {
		t.Errorf("RTO %v a round trip after a stall of 20ms", e.rto)
	}
	for range 40 {
		round(100 * time.Microsecond)
	}
	if e.rto > 6*time.Millisecond {
		t.Errorf("RTO %v long after the stall", e.rto)
	}
}
