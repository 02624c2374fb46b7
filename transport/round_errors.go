// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/libra-ina/libra/retransmit"
)

var (
	// ErrMode means that the job's mode or arithmetic has no such operation.
	ErrMode = errors.New("transport: not possible in the job's mode")
	// ErrOutOfStep means that an earlier call of Reduce or NegotiateScale failed, so
	// that this worker is in another round than the others. The job needs a new epoch.
	ErrOutOfStep = errors.New("transport: out of step with the other workers, the job needs a new epoch")
)

// RoundError reports the progress of a Reduce or a NegotiateScale that failed after
// sending. The worker is then out of step with the others: both methods fail with
// [ErrOutOfStep].
type RoundError struct {
	Scale bool // NegotiateScale, which has one part; or Reduce, whose parts are groups

	Parts   int
	Done    int // have their result
	Waiting int // acknowledged by the aggregator, which waits for other workers
	Unacked int // sent, not acknowledged
	Unsent  int

	// Part is the first part that is not done, Round its round or iteration.
	Part  int
	Round uint32

	Err error // a [*PeerError], a [*NoResultError], a context's error or [ErrClosed]
}

func (e *RoundError) Error() string {
	if e.Scale {
		state := "is not acknowledged"
		if e.Waiting > 0 {
			state = "is acknowledged and waits for other workers"
		}
		return fmt.Sprintf("transport: negotiation of the scale of iteration %d failed; the worker's report %s: %v",
			e.Round, state, e.Err)
	}
	return fmt.Sprintf("transport: reduce failed in round %d of group %d: of %d groups %d are done, %d are acknowledged and wait for other workers, %d are not acknowledged, %d not sent: %v",
		e.Round, e.Part, e.Parts, e.Done, e.Waiting, e.Unacked, e.Unsent, e.Err)
}

func (e *RoundError) Unwrap() error { return e.Err }

// NoResultError means that the aggregator acknowledged contributions, but no result
// arrived within WorkerConfig.RoundLimit: some worker has not contributed.
type NoResultError struct {
	Waited time.Duration // since the last result
	Silent time.Duration // since the last answer of the aggregator
}

func (e *NoResultError) Error() string {
	return fmt.Sprintf("no result for %v, the aggregator's last answer came %v ago; are all workers of the job running?",
		e.Waited.Round(time.Millisecond), e.Silent.Round(time.Millisecond))
}

// noResult turns silence of the waits window into a NoResultError.
func (r *rounds) noResult(err error) error {
	var silent *retransmit.SilentPeerError
	if !errors.As(err, &silent) {
		return err
	}
	return &NoResultError{Waited: silent.Silent, Silent: r.w.now.Sub(r.heard)}
}
