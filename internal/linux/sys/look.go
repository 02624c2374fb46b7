// SPDX-License-Identifier: Apache-2.0

package sys

import "time"

// DefaultLook is the Limit of a [Look] of endpoints, of a host agent and of its clients. If several
// of them share a processor and none sleeps, they wait that long for each other.
const DefaultLook = 400 * time.Microsecond

const (
	// lookGain is the share of Limit that a successful look saves: the cost of a sleep.
	lookGain = 8
	// lookRest is the number of sleeps that make up for one unsuccessful look.
	lookRest = 64
	// lookCredit is the most credit, in looks.
	lookCredit = 25
	// lookLoss is the most that one unsuccessful look counts, in looks. A look that loses the
	// processor for long, for example to other work of its process, says little about later ones.
	lookLoss = 16
)

// A Look decides how long its owner polls for work before it sleeps. Sleeping and waking take tens
// of microseconds if processors go idle in between, and system calls on both sides. Between two
// polls the owner yields the processor, which the other side may need; but on a busy processor a
// yield takes longer than a sleep. So it polls only while that saves more time than unsuccessful
// looks waste.
type Look struct {
	Limit time.Duration // of one look; 0: sleep at once

	since  time.Time     // start of the current look, or zero
	credit time.Duration // time that looks have saved, minus the time that they have wasted
}

// Again is called when there is no work. It reports whether to poll again; otherwise the owner
// sleeps.
func (l *Look) Again() bool {
	if !l.lookAgain(time.Now()) {
		return false
	}
	yield()
	return true
}

// Found is called when there is work.
func (l *Look) Found() {
	if !l.since.IsZero() {
		l.endLook(time.Now())
	}
}

func (l *Look) lookAgain(now time.Time) bool {
	switch {
	case !l.since.IsZero():
		if now.Sub(l.since) <= l.Limit {
			return true
		}
		l.endLook(now)
	case l.credit < 0:
		l.credit += max(1, l.Limit/lookRest)
	case l.Limit > 0:
		l.since = now
		return true
	}
	return false
}

// endLook ends a look. One that took too long was unsuccessful even if there is work now.
func (l *Look) endLook(now time.Time) {
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
