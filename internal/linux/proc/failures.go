// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Processes that depend on each other end within a moment of each other, and the one that failed
// first is often not the first to have ended: it may still be writing its reason while the others,
// which lost it, are gone. So the groups wait before they decide which failure is the cause.
const (
	// settleCause is how long after a failure that may be the cause others are waited for.
	settleCause = time.Second
	// settleConsequence is that time while all known failures are consequences of another.
	settleConsequence = 5 * time.Second
)

// otherTail is the number of last lines that a [FailuresError] shows of each failure but the first.
const otherTail = 3

// Failures finds out which of the failures of one or several groups is the cause of the others.
type Failures struct {
	consequence func(*ExitError) bool

	mu       sync.Mutex
	running  int           // children that may end by themselves
	services int           // children that may not
	all      []error       // in the order in which the children ended
	tell     []func(error) // the groups that failed, once each failure
	timer    *time.Timer   // nil before the first failure
	caused   bool          // one of the failures may be the cause
	settled  chan struct{} // closed when the cause is decided
	over     bool          // settled is closed
	cause    error         // valid when settled
}

// NewFailures returns failures for [Config]. Consequence reports that a child failed because
// another process had ended, so that the other's failure explains it; nil: no child does.
func NewFailures(consequence func(*ExitError) bool) *Failures {
	if consequence == nil {
		consequence = func(*ExitError) bool { return false }
	}
	return &Failures{consequence: consequence, settled: make(chan struct{})}
}

// count adds a child that has started, or with -1 takes one away that has ended.
func (f *Failures) count(service bool, one int) {
	f.mu.Lock()
	if service {
		f.services += one
	} else {
		f.running += one
	}
	complete := f.complete()
	f.mu.Unlock()
	if complete {
		f.settle()
	}
}

// complete reports that there were failures, and that no other is to be expected. The caller holds
// the lock.
func (f *Failures) complete() bool {
	return f.timer != nil && f.running == 0 && (f.caused || f.services == 0)
}

// add records a failure. Once the cause of all is decided, fail is called with it.
func (f *Failures) add(err error, fail func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return // another failure had ended the group
	}
	f.all = append(f.all, err)
	f.tell = append(f.tell, fail)
	exit := (*ExitError)(nil)
	caused := !errors.As(err, &exit) || !f.consequence(exit)
	limit := settleConsequence
	if caused {
		limit = settleCause
	}
	switch {
	case f.timer == nil:
		f.timer = time.AfterFunc(limit, f.settle)
	case caused && !f.caused:
		f.timer.Reset(limit)
	}
	f.caused = f.caused || caused
}

// Await returns when the cause of the failures is decided, at once if there are none.
func (f *Failures) Await() {
	f.mu.Lock()
	pending := f.timer != nil
	f.mu.Unlock()
	if pending {
		<-f.settled
	}
}

// settle decides the cause of the failures, if there are any.
func (f *Failures) settle() {
	f.mu.Lock()
	if f.timer == nil || f.over {
		f.mu.Unlock()
		return
	}
	f.timer.Stop()
	f.over, f.cause = true, f.decide()
	tell := f.tell
	f.mu.Unlock()
	for _, fail := range tell {
		fail(f.cause)
	}
	close(f.settled)
}

// decide returns the failures as one error, the cause first. The caller holds the lock.
func (f *Failures) decide() error {
	var causes, consequences []error
	for _, err := range f.all {
		exit := (*ExitError)(nil)
		if errors.As(err, &exit) && f.consequence(exit) {
			consequences = append(consequences, err)
		} else {
			causes = append(causes, err)
		}
	}
	if len(f.all) > 1 {
		return &FailuresError{Failures: append(causes, consequences...)}
	}
	return f.all[0]
}

// FailuresError is the failure of several children.
type FailuresError struct {
	Failures []error // the cause first
}

// Error shows the cause as its own error does, and the last lines of the others.
func (e *FailuresError) Error() string {
	var b strings.Builder
	b.WriteString(e.Failures[0].Error())
	for _, err := range e.Failures[1:] {
		b.WriteString("\nand ")
		exit := (*ExitError)(nil)
		if errors.As(err, &exit) {
			short := *exit
			short.Stderr = short.Stderr[max(0, len(short.Stderr)-otherTail):]
			err = &short
		}
		fmt.Fprint(&b, err)
	}
	return b.String()
}

// Unwrap returns the failures, so that errors.As finds the cause first.
func (e *FailuresError) Unwrap() []error { return e.Failures }
