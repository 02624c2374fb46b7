// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"github.com/libra-ina/libra/retransmit"
)

// ownTime measures the time between the calls of a worker's program: while no push, no pull and no
// end of a step is under way. Its readings of the clock are those of the loop's turns.
type ownTime struct {
	underWay      int
	pushes, pulls uint64 // that have ended
	spent         time.Duration
	since         retransmit.Time // nothing is under way, if underWay is 0
}

// isCall reports whether an operation is what a program asked for, not what the worker does by
// itself.
func (o *operation) isCall() bool {
	asked := o.released != nil || o.queued || o.owner != nil || len(o.members) > 0 || o.step != nil
	return asked && o.find == nil && o.parent == nil
}

// beginOperation notes that an operation has begun.
func (t *ownTime) beginOperation(o *operation, now retransmit.Time) {
	if o.counted || !o.isCall() {
		return
	}
	o.counted = true
	if t.underWay == 0 {
		t.spent += now.Sub(t.since)
	}
	t.underWay++
}

// endOperation notes that it has ended.
func (t *ownTime) endOperation(o *operation, now retransmit.Time) {
	if !o.counted {
		return
	}
	o.counted = false
	switch {
	case o.step != nil:
	case o.pull:
		t.pulls++
	default:
		t.pushes += uint64(max(1, len(o.members)))
	}
	if t.underWay--; t.underWay == 0 {
		t.since = now
	}
}

// totalIdle is the time in which nothing was under way so far.
func (t *ownTime) totalIdle(now retransmit.Time) time.Duration {
	if t.underWay > 0 {
		return t.spent
	}
	return t.spent + now.Sub(t.since)
}
