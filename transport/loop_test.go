// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
)

// deadBefore is a link without traffic. A caller that wakes its loop continues only when the loop
// has ended.
type deadBefore struct {
	link.Link
	loop *loop
}

func (d deadBefore) Receive([]link.Packet) (int, error) { return 0, nil }
func (d deadBefore) Close() error                       { return nil }
func (d deadBefore) Wake()                              { <-d.loop.dead }

// Do returns no error for a function that was run, even if it was the last one: a commit that
// counts as failed would be repeated.
func TestDoOfALoopsLastFunction(t *testing.T) {
	for range 50 { // both have happened when Do checks: the result must not depend on which it sees
		var l loop
		l.init(deadBefore{loop: &l}, 0)
		ran := false
		posted := make(chan struct{})
		l.start(func() error {
			<-posted
			return l.serve(func([]link.Packet) error { return nil }, nil)
		}, func(error) {})
		go func() {
			for len(l.calls) == 0 {
				runtime.Gosched()
			}
			close(posted)
		}()
		if err := l.Do(t.Context(), func() { ran = true; l.closing.Store(true) }); err != nil || !ran {
			t.Fatalf("%v, ran %v", err, ran)
		}
	}
}

// quiet is a link without traffic that breaks when it has been received from a few times.
type quiet struct {
	link.Link
	receives, waits int
}

func (q *quiet) Receive([]link.Packet) (int, error) {
	if q.receives++; q.receives > 5 {
		return 0, net.ErrClosed
	}
	return 0, nil
}

func (q *quiet) Wait(time.Duration) error {
	q.waits++
	return nil
}

// simulated is quiet, as a link of a simulation.
type simulated struct{ *quiet }

func (simulated) Enter() {}

// An endpoint polls for frames before it sleeps, for the configured time; not in a simulation,
// where no time would pass.
func TestEndpointsLookBeforeTheySleep(t *testing.T) {
	for name, test := range map[string]struct {
		look  time.Duration
		gated bool
		waits int
	}{
		"for an hour":  {time.Hour, false, 0},
		"not":          {-1, false, 5},
		"a simulation": {time.Hour, true, 5},
	} {
		q := &quiet{}
		var l loop
		if test.gated {
			l.init(simulated{q}, test.look)
		} else {
			l.init(q, test.look)
		}
		if err := l.serve(nil, nil); !errors.Is(err, net.ErrClosed) || q.waits != test.waits {
			t.Errorf("%s: %d sleeps, want %d; %v", name, q.waits, test.waits, err)
		}
	}
	var l loop
	if l.init(&quiet{}, 0); l.idle.Limit != DefaultLook {
		t.Errorf("by default it looks for %v, want %v", l.idle.Limit, DefaultLook)
	}
}

// A worker polls for answers, that is while frames are unanswered, and not for its callers.
func TestWorkersLookForAnswers(t *testing.T) {
	q := &quiet{}
	w := &Worker{clock: clockFrom(time.Now())}
	w.init(q, time.Hour)
	if err := w.sleep(); err != nil || q.waits != 1 {
		t.Errorf("with nothing to come: %d sleeps, %v", q.waits, err)
	}
	w.out = make([]link.Frame, 1)
	if err := w.sleep(); err != nil || q.waits != 1 {
		t.Errorf("with a frame to send: %d sleeps, %v", q.waits, err)
	}
	w.idle.Limit = 0
	if err := w.sleep(); err != nil || q.waits != 2 {
		t.Errorf("without a look: %d sleeps, %v", q.waits, err)
	}
}

// Closing an endpoint returns no error of other failures in the meantime, and neither do calls that
// end with it.
func TestCloseIsTheReason(t *testing.T) {
	var l loop
	l.init(deadBefore{loop: &l}, 0)
	l.start(func() error {
		for !l.closing.Load() {
			runtime.Gosched()
		}
		return errors.New("the device is gone")
	}, func(error) {})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Err(); err != ErrClosed { //nolint:errorlint // nothing is wrapped
		t.Errorf("the endpoint ended with %v", err)
	}
}

// gated is a link of a simulation: it records how often its gate is passed, and the submissions
// until then.
type gated struct {
	link.Link
	loop   *loop
	passed int
	before []int
	enter  func()
}

func (g *gated) Wake() {}
func (g *gated) Enter() {
	g.passed++
	g.before = append(g.before, len(g.loop.calls))
	if g.enter != nil {
		g.enter()
	}
}

// A link's gate is passed before a submission and before the end is requested. A caller whose
// context ends before the gate submits nothing, even if there is room.
func TestGateIsPassedFirst(t *testing.T) {
	var l loop
	g := &gated{loop: &l}
	l.init(g, 0)
	for range 2 {
		if err := l.post(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(g.before, []int{0, 1}) || len(l.calls) != 2 {
		t.Errorf("%d calls are handed in; when the gate was passed there were %v", len(l.calls), g.before)
	}
	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	g.enter = func() { cancel(why) }
	for range 20 { // a choice between two ready cases is random
		if err := l.post(ctx, func() {}); err != why || len(l.calls) != 2 { //nolint:errorlint // nothing is wrapped
			t.Fatalf("error %v, want %v; %d calls are handed in", err, why, len(l.calls))
		}
	}
	g.enter = func() {
		if l.closing.Load() {
			t.Error("the end is asked for before the gate is passed")
		}
		close(l.dead)
	}
	if err := l.Close(); err != nil || !l.closing.Load() {
		t.Errorf("%v, closing %v", err, l.closing.Load())
	}
}
