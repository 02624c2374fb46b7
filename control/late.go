// SPDX-License-Identifier: Apache-2.0

package control

import (
	"log/slog"
	"slices"
	"time"
)

// lateAfter is how long the workers that have arrived at the end of a step wait for the others
// before the log names these.
const lateAfter = 5 * time.Second

// lateness notices that a step waits for some of its workers.
type lateness struct {
	round  *round // that has begun to wait
	since  time.Time
	logged []uint16
}

// logLate is called regularly. It logs once for which workers a step waits, and again when these
// change.
func (l *lateness) logLate(b *barrier, log *slog.Logger) {
	r, step, missing := b.awaitedStep()
	if r != l.round {
		*l = lateness{round: r, since: time.Now()}
	}
	if r == nil || time.Since(l.since) < lateAfter || slices.Equal(missing, l.logged) {
		return
	}
	l.logged = missing
	log.Warn("waiting for workers at the end of a step", "step", step, "workers", missing)
}

// awaitedStep returns the step at whose end some workers have arrived, and those that have not; nil
// if none has arrived, or all have.
func (b *barrier) awaitedStep() (r *round, step uint64, missing []uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.arrived) == 0 || b.round.commits {
		return nil, 0, nil
	}
	for id := range b.running {
		if !b.arrived[id] {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return b.round, b.step, missing
}
