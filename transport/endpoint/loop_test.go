// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
)

// deadBefore is a link without traffic. A caller that wakes its loop continues only when the loop
// has ended.
type deadBefore struct {
	link.Link
	loop *Loop
}

func (d deadBefore) Receive([]link.Packet) (int, error) { return 0, nil }
func (d deadBefore) Close() error                       { return nil }
func (d deadBefore) Wake()                              { <-d.loop.dead }

// Do returns no error for a function that was run, even if it was the last one: a commit that
// counts as failed would be repeated.
func TestDoOfALoopsLastFunction(t *testing.T) {
	for range 50 { // both have happened when Do checks: the result must not depend on which it sees
		var l Loop
		l.Init(Config{Link: deadBefore{loop: &l}})
		ran := false
		posted := make(chan struct{})
		l.Start(func() error {
			<-posted
			return l.Serve(func([]link.Packet) error { return nil }, nil)
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
	limits          []time.Duration // of the waits
}

func (q *quiet) Receive([]link.Packet) (int, error) {
	if q.receives++; q.receives > 5 {
		return 0, net.ErrClosed
	}
	return 0, nil
}

func (q *quiet) Wait(limit time.Duration) error {
	q.waits++
	q.limits = append(q.limits, limit)
	return nil
}

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
		var l Loop
		cfg := Config{Link: q, Look: test.look}
		if test.gated {
			cfg.Gate = func() {}
		}
		l.Init(cfg)
		if err := l.Serve(nil, nil); !errors.Is(err, net.ErrClosed) || q.waits != test.waits {
			t.Errorf("%s: %d sleeps, want %d; %v", name, q.waits, test.waits, err)
		}
	}
	var l Loop
	if l.Init(Config{Link: &quiet{}}); l.idle.Limit != DefaultLook {
		t.Errorf("by default it looks for %v, want %v", l.idle.Limit, DefaultLook)
	}
}

// An endpoint with frames that its link has no room for sleeps only until it tries again: nothing
// else may wake it. Without such frames it sleeps until something does. An error of sending ends
// it.
func TestEndpointsTryAgainWithWhatIsLeft(t *testing.T) {
	q, full := &quiet{}, errors.New("the device is gone")
	var l Loop
	l.Init(Config{Link: q, Look: -1})
	left := []bool{true, true, false, true}
	err := l.Serve(nil, func() (bool, error) {
		if len(left) == 0 {
			return true, full
		}
		now := left[0]
		left = left[1:]
		return now, nil
	})
	if want := []time.Duration{SendRetry, SendRetry, -1, SendRetry}; !errors.Is(err, full) || !slices.Equal(q.limits, want) {
		t.Errorf("it sleeps for %v, want %v; %v", q.limits, want, err)
	}
}

// Closing an endpoint returns no error of other failures in the meantime, and neither do calls that
// end with it.
func TestCloseIsTheReason(t *testing.T) {
	var l Loop
	l.Init(Config{Link: deadBefore{loop: &l}})
	l.Start(func() error {
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

// gated is the link of a loop with a gate: it records how often the gate is passed, and the
// submissions until then.
type gated struct {
	link.Link
	loop   *Loop
	passed int
	before []int
	enter  func()
}

func (g *gated) Wake() {}
func (g *gated) pass() {
	g.passed++
	g.before = append(g.before, len(g.loop.calls))
	if g.enter != nil {
		g.enter()
	}
}

// The gate is passed before a submission and before the end is requested. A caller whose
// context ends before the gate submits nothing, even if there is room.
func TestGateIsPassedFirst(t *testing.T) {
	var l Loop
	g := &gated{loop: &l}
	l.Init(Config{Link: g, Gate: g.pass})
	for range 2 {
		if err := l.Post(t.Context(), func() {}); err != nil {
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
		if err := l.Post(ctx, func() {}); err != why || len(l.calls) != 2 { //nolint:errorlint // nothing is wrapped
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

// scripted has nothing to receive, then a frame within a look, then nothing for longer than one,
// and records sleeps.
type scripted struct {
	link.Link
	turns, waits int
}

func (s *scripted) Receive([]link.Packet) (int, error) {
	switch s.turns++; s.turns {
	case 1, 2:
		return 0, nil
	case 3:
		return 1, nil
	case 4:
		time.Sleep(2 * DefaultLook)
		return 0, nil
	case 5:
		return 0, nil
	}
	return 0, net.ErrClosed
}

func (s *scripted) Reply([]link.Packet) error { return nil }

func (s *scripted) Wait(time.Duration) error {
	s.waits++
	return nil
}

// A frame ends the look of a server, and the next one begins when there is none again, however long
// that took.
func TestWorkEndsALookOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		var l Loop
		l.Init(Config{Link: s})
		if err := l.Serve(func([]link.Packet) error { return nil }, nil); !errors.Is(err, net.ErrClosed) || s.waits != 0 {
			t.Errorf("%d sleeps, %v", s.waits, err)
		}
	})
}
