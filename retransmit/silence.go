// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"fmt"
	"time"
)

// SilentPeerError means that a peer has not answered for [Config.Silence] while frames
// were outstanding. Unacknowledged frames may have been applied or not: the frame or
// its acknowledgement may have been lost.
type SilentPeerError struct {
	Silent   time.Duration // since the last answer, without the caller's own pauses
	Acked    uint64        // frames of the flow that were acknowledged
	Unacked  int           // frames that were not
	FirstSeq uint32        // the oldest unacknowledged frame
	LastSeq  uint32        // the newest unacknowledged frame
}

func (e *SilentPeerError) Error() string {
	return fmt.Sprintf("retransmit: peer silent for %v: %d frames acknowledged, %d not (sequence numbers %d to %d); is it running and reachable?",
		e.Silent, e.Acked, e.Unacked, e.FirstSeq, e.LastSeq)
}

// silence measures how long the caller has listened without an answer.
type silence struct {
	at       Time          // when the caller listened last
	listened time.Duration // since the last answer
	since    Time          // of the last answer, or of the first outstanding frame
}

// restartSilence restarts the measurement, on an answer or the first outstanding frame.
func (s *silence) restartSilence(now Time) { s.at, s.listened, s.since = now, 0, now }

// addListening records that the caller has listened without an answer. The caller should
// listen at least once within the limit; any excess is a pause of the caller, in which
// it could neither send nor receive.
func (s *silence) addListening(now Time, limit time.Duration) {
	s.listened += min(max(0, now.Sub(s.at)), limit)
	s.at = now
}

// nextListening returns when to listen again. A caller may go on after the limit: it must not be
// told the past.
func (s *silence) nextListening(silent, rto time.Duration) Time {
	if left := silent - s.listened; left > 0 {
		return s.at.Add(min(left, rto))
	}
	return s.at.Add(rto)
}

// Check returns a [*SilentPeerError] if the peer has been silent for too long. Call it
// only when all received answers are processed.
//
// Only time counts in which the caller listened: if it calls Check later than
// [Window.NextDeadline], because its process was stopped, its machine was suspended or
// a garbage collection took long, the delay does not count.
func (w *Window) Check(now Time) error {
	if w.outstanding == 0 {
		return nil
	}
	w.heard.addListening(now, w.rtt.rto+w.rtt.min)
	if w.heard.listened < w.silent {
		return nil
	}
	e := &SilentPeerError{Silent: w.heard.listened, Acked: w.stats.Acked, Unacked: w.outstanding, FirstSeq: w.base}
	for seq := range w.Unacked() {
		e.LastSeq = seq
	}
	return e
}

// Silence returns for how long the peer has not answered although frames are outstanding, 0 if none
// is. Unlike [Window.Check] it counts the caller's pauses.
func (w *Window) Silence(now Time) time.Duration {
	if w.outstanding == 0 {
		return 0
	}
	return max(0, now.Sub(w.heard.since))
}
