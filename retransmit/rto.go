// SPDX-License-Identifier: Apache-2.0

package retransmit

import "time"

// estimator derives the retransmission timeout from round-trip times. RFC 6298's
// gains are meant for one sample per round trip; a window has hundreds, and the
// variance would follow the last few of them. So the variance is the largest of a
// round trip, as in Linux (tcp_rtt_estimator in net/ipv4/tcp_input.c): it grows at
// once, and shrinks by a quarter of the difference each round trip.
type estimator struct {
	srtt     time.Duration
	mdev     time.Duration // smoothed deviation of the samples
	peak     time.Duration // largest mdev of this round trip
	rttvar   time.Duration
	round    uint32 // the round trip ends with the answer to this frame
	measured bool

	rto, min, max time.Duration
}

// sample adds the round-trip time of frame seq, which was sent once; next is the
// number of the next frame. It also ends a backoff, because it recomputes the timeout
// (RFC 6298, section 5, last paragraph but one).
//
// Four times the variance is at least the least timeout. While a peer runs, the
// samples of a whole window are similar and the measured variance vanishes; then the
// peer waits for a core, and all answers are late by a scheduler slice. Linux bounds
// the variance in the same way.
func (e *estimator) sample(rtt time.Duration, seq, next uint32) {
	floor := e.min / 4
	if !e.measured {
		e.srtt, e.mdev, e.measured = rtt, rtt/2, true
		e.rttvar = max(e.mdev, floor)
		e.peak, e.round = e.rttvar, next
	} else {
		late := rtt - e.srtt
		e.srtt += late / 8
		// A shorter round trip is no reason to wait longer: such deviations count less.
		grow := late.Abs() - e.mdev
		if late < 0 && grow > 0 {
			grow /= 8
		}
		e.mdev += grow / 4
		e.peak = max(e.peak, e.mdev)
		e.rttvar = max(e.rttvar, e.peak)
		if !newer(e.round, seq) {
			e.rttvar -= (e.rttvar - e.peak) / 4
			e.peak, e.round = floor, next
		}
	}
	e.rto = e.clamp(e.srtt + 4*e.rttvar)
}

// backoff doubles the timeout until the next sample: if the path has become slower
// than the timeout, every frame is sent twice and none gives a sample (Karn's rule).
// Only a longer timeout for later frames ends that.
func (e *estimator) backoff() { e.rto = e.clamp(2 * e.rto) }

func (e *estimator) clamp(d time.Duration) time.Duration { return min(max(d, e.min), e.max) }
