// SPDX-License-Identifier: Apache-2.0

package sys

import "time"

// DefaultLook is the Limit of a [Look] of endpoints, of a host agent and of its clients. Several of them that share a processor wait
// that long for each other where none of them sleeps.
const DefaultLook = 400 * time.Microsecond

const (
	// lookGain is what a look that pays is taken to save: a sleep, as a share of Limit.
	lookGain = 8
	// lookRest is how many sleeps make up for the time of a look in vain.
	lookRest = 64
	// lookCredit bounds, in looks, what is remembered.
	lookCredit = 25
	// lookLoss bounds, in looks, what one in vain counts. One that loses the processor for long, to other work of the owner's
	// own process for example, tells little of those after it.
	lookLoss = 16
)

// A Look decides how long its owner looks for work before it sleeps. To fall asleep and to be woken takes tens of
// microseconds where processors go idle meanwhile, and system calls of both sides. Between two looks the processor is
// left to others, who may have to do what is waited for; but a busy one comes back later than a sleeper would have it.
// So there are looks only while they save more time than those in vain take.
type Look struct {
	Limit time.Duration // of one look; 0: sleep at once

	since  time.Time     // when the current one began, or zero
	credit time.Duration // what looks have saved, less what those in vain have taken
}

// Again is called when there is no work. It reports whether to look once more; otherwise the owner sleeps.
func (l *Look) Again() bool {
	if !l.again(time.Now()) {
		return false
	}
	yield()
	return true
}

// Found is called when there is work.
func (l *Look) Found() {
	if !l.since.IsZero() {
		l.end(time.Now())
	}
}

func (l *Look) again(now time.Time) bool {
	switch {
	case !l.since.IsZero():
		if now.Sub(l.since) <= l.Limit {
			return true
		}
		l.end(now)
	case l.credit < 0:
		l.credit += max(1, l.Limit/lookRest)
	case l.Limit > 0:
		l.since = now
		return true
	}
	return false
}

// end ends a look. One that took too long was in vain, also if there is work now.
func (l *Look) end(now time.Time) {
	limit := min(l.Limit, time.Hour)
	if took := now.Sub(l.since); took <= l.Limit {
		l.credit += l.Limit / lookGain
	} else {
		l.credit -= min(took, lookLoss*limit)
	}
	most := lookCredit * limit
	l.credit = min(max(l.credit, -most), most)
	l.since = time.Time{}
}
