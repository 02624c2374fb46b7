// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
)

// waitingLink closes slept when its endpoint sleeps.
type waitingLink struct {
	link.Link
	once  sync.Once
	slept chan struct{}
}

func (l *waitingLink) Wait(limit time.Duration) error {
	l.once.Do(func() { close(l.slept) })
	return l.Link.Wait(limit)
}

// TestIdleServerSleeps has a server that nothing comes to: it does not keep a CPU busy.
func TestIdleServerSleeps(t *testing.T) {
	ctx := deadline(t)
	l := &waitingLink{Link: newMemNet().open("10.0.0.1:19522"), slept: make(chan struct{})}
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: newLedger()})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.slept:
	case <-ctx.Done():
		t.Error("it never waits for frames")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestPlacesOfOperationsAreUsedAgain pushes one batch after the other: the table of
// operations does not grow.
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
