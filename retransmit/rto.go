package retransmit

import "time"

// estimator derives the retransmission timeout from round-trip times, as RFC
// 6298 says. All fields are durations.
type estimator struct {
	srtt, rttvar  time.Duration
	rto, min, max time.Duration
	current       time.Duration // rto without backoff; 0 before the first sample
	measured      bool
}

// sample takes the round-trip time of a frame that was sent once. It also
// ends a backoff, because the timeout is computed anew (RFC 6298 §5, last
// paragraph but one).
//
// The variance counts as no less than the least timeout. While a peer runs, the
// samples of a whole window are much alike and the measured variance vanishes;
// then the peer waits for a core, and all answers are late by a scheduler slice.
// TCP in Linux bounds the variance in the same way, by its least timeout.
func (e *estimator) sample(rtt time.Duration) {
	if !e.measured {
		e.srtt, e.rttvar, e.measured = rtt, rtt/2, true
	} else {
		e.rttvar += ((e.srtt - rtt).Abs() - e.rttvar) / 4
		e.srtt += (rtt - e.srtt) / 8
	}
	e.current = e.clamp(e.srtt + max(Tick, e.min, 4*e.rttvar))
	e.rto = e.current
}

// backoff doubles the timeout. It stays doubled until the next sample: if the
// path has become slower than the timeout, every frame is sent twice and none
// gives a sample (Karn's rule), and only a longer timeout for the frames that
// follow gets out of that.
func (e *estimator) backoff() { e.rto = e.clamp(2 * e.rto) }

func (e *estimator) clamp(d time.Duration) time.Duration { return min(max(d, e.min), e.max) }
