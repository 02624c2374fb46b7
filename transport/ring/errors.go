// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

var (
	// ErrConfig is wrapped by errors that name a missing or invalid field.
	ErrConfig = errors.New("ring: bad configuration")
	// ErrUse is wrapped by errors of vectors that do not have Config.Values values. They change
	// nothing.
	ErrUse = errors.New("ring: wrong call")
)

// ValueError refuses a vector before anything is sent: one of its values is not finite.
type ValueError struct {
	Index int
	Value float32
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("ring: value %d is %v, which would spoil the sums of all workers; nothing was sent: send finite numbers",
		e.Index, e.Value)
}

// Worker is one of a ring's workers.
type Worker struct {
	Place int
	Addr  netip.AddrPort
}

func (w Worker) String() string { return fmt.Sprintf("worker %d (%v)", w.Place, w.Addr) }

// MissingError ends a Ring whose operation has stood still for too long.
type MissingError struct {
	Operation uint32
	Place     int // of the worker whose error this is
	Waited    time.Duration
	// Absent are the neighbours that have not come to the operation, Silent those that have come, and
	// do not send what this worker waits for. If there are none, both answer, and wait for others.
	Absent, Silent []Worker
	// Refusals are the last answers of Absent neighbours that refused to take this worker for their
	// neighbour, by their places.
	Refusals map[int]wire.Refusal
	LinkErr  error // the last error of sending, or nil
}

func (e *MissingError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ring: worker %d, operation %d stands still for %v: ", e.Place, e.Operation,
		e.Waited.Round(time.Millisecond))
	var parts []string
	for _, w := range e.Absent {
		part := fmt.Sprintf("%v has not come to it", w)
		if r, refused := e.Refusals[w.Place]; refused {
			part += fmt.Sprintf(", and refuses this worker: %v", r)
		}
		parts = append(parts, part)
	}
	for _, w := range e.Silent {
		parts = append(parts, fmt.Sprintf("%v does not answer any more", w))
	}
	if parts == nil {
		b.WriteString("its neighbours answer, so that a worker beyond them has not come or has failed: their errors name it")
	} else {
		b.WriteString(strings.Join(parts, ", and ") + ": start all workers again, with the same Workers and a new Epoch")
	}
	if e.LinkErr != nil {
		fmt.Fprintf(&b, "; the last error of sending was: %v", e.LinkErr)
	}
	return b.String()
}

// MismatchError ends a Ring with a neighbour whose configuration differs.
type MismatchError struct {
	Neighbour    Worker
	Place        int // of the worker whose error this is
	Theirs, Ours Terms
}

// Terms are what all workers of a ring have in common.
type Terms struct {
	Values, Workers int
	Codec           codec.Config
}

func (e *MismatchError) Error() string {
	var parts []string
	add := func(what string, theirs, ours int) {
		if theirs != ours {
			parts = append(parts, fmt.Sprintf("%s %d instead of %d", what, theirs, ours))
		}
	}
	add("Values", e.Theirs.Values, e.Ours.Values)
	add("a number of Workers of", e.Theirs.Workers, e.Ours.Workers)
	add("Codec.Bound", e.Theirs.Codec.Bound, e.Ours.Codec.Bound)
	add("Codec.Scale", e.Theirs.Codec.Scale, e.Ours.Codec.Scale)
	return fmt.Sprintf("ring: %v has %s of worker %d: give all workers the same", e.Neighbour,
		strings.Join(parts, ", "), e.Place)
}

// RefusedError ends a Ring whose frame a neighbour refuses.
type RefusedError struct {
	Neighbour Worker
	Place     int // of the worker whose error this is
	Refusal   wire.Refusal
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("ring: %v refuses a frame of worker %d: %v: start all workers again, of one version of Libra, with the same Workers and a new Epoch",
		e.Neighbour, e.Place, e.Refusal)
}

// Unwrap returns the refusal.
func (e *RefusedError) Unwrap() error { return e.Refusal }

// missing returns the error of an operation that has stood still for too long.
func (r *Ring) missing() error {
	last := r.link.Stats().LastError
	if r.stuck >= r.cfg.Limit/2 { // nobody else is to blame
		text := ""
		if last != nil {
			text = fmt.Sprintf("; the last error of sending was: %v", last)
		}
		return fmt.Errorf("ring: worker %d, operation %d stands still for %v, and its link takes no frames: is its interface up?%s",
			r.cfg.Place, r.op, r.stalled.Round(time.Millisecond), text)
	}
	e := &MissingError{
		Operation: r.op, Place: r.cfg.Place, Waited: r.stalled, Refusals: map[int]wire.Refusal{},
		LinkErr: last,
	}
	isPair := r.next.Worker == r.prev.Worker
	for i, n := range []*neighbour{&r.prev, &r.next} {
		hasDone := [2]bool{r.left == 0, r.hasMadeAll()}[i] // what this worker waits for: it may have finished
		switch {
		case isPair && i > 0: // said already
		case newer(r.op, n.op):
			e.Absent = append(e.Absent, n.Worker)
			if n.refusal.Code != 0 {
				e.Refusals[n.Place] = n.refusal
			}
		case hasDone && !isPair:
		case n.silent >= r.cfg.Limit/2:
			e.Silent = append(e.Silent, n.Worker)
		}
	}
	return e
}
