// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
)

// waitingLink records how long its endpoint sleeps the first time.
type waitingLink struct {
	link.Link
	once  sync.Once
	slept chan time.Duration
}

func (l *waitingLink) Wait(limit time.Duration) error {
	l.once.Do(func() { l.slept <- limit })
	return l.Link.Wait(limit)
}

// TestIdleServerSleeps runs a server without frames: it does not keep a CPU busy, but sleeps until
// a frame arrives.
func TestIdleServerSleeps(t *testing.T) {
	ctx := deadline(t)
	l := &waitingLink{Link: newMemNet().open("10.0.0.1:19522"), slept: make(chan time.Duration, 1)}
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: newLedger()})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case limit := <-l.slept:
		if limit >= 0 {
			t.Errorf("it looks again after %v", limit)
		}
	case <-ctx.Done():
		t.Error("it never waits for frames")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestPlacesOfOperationsAreUsedAgain pushes one batch after the other: the table of operations does
// not grow.
func TestPlacesOfOperationsAreUsedAgain(t *testing.T) {
	p := newPausable(t, time.Hour)
	for range 3 {
		p.push(1)
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
		p.answer()
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.ops) != 1 {
		t.Errorf("%d places for one push at a time", len(p.ops))
	}
}
