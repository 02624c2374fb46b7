package retransmit

import (
	"fmt"
	"time"
)

// SilentPeerError says that a peer has answered nothing for as long as
// [Config.Silence] allows although frames were waiting for an answer. Frames
// that are not acknowledged may have been applied or not: the frame or its
// acknowledgement may have been lost.
type SilentPeerError struct {
	Silent   time.Duration // since the last answer
	Acked    uint64        // frames of the flow that were acknowledged
	Unacked  int           // frames that are not
	FirstSeq uint32        // the oldest of these
	LastSeq  uint32        // the newest of these
}

func (e *SilentPeerError) Error() string {
	return fmt.Sprintf("retransmit: peer silent for %v: %d frames acknowledged, %d not (sequence numbers %d to %d); is it running and reachable?",
		e.Silent, e.Acked, e.Unacked, e.FirstSeq, e.LastSeq)
}

// Check returns a [*SilentPeerError] if the peer has been silent for too long.
func (w *Window) Check(now Time) error {
	silent := now.Sub(w.heard)
	if w.outstanding == 0 || silent < w.silence {
		return nil
	}
	e := &SilentPeerError{Silent: silent, Acked: w.stats.Acked, Unacked: w.outstanding, FirstSeq: w.base}
	for seq := range w.Unacked() {
		e.LastSeq = seq
	}
	return e
}
