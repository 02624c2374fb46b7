// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/telemetry"
)

// timed is a link whose packets come one second after each other, five of them.
type timed struct {
	link.Link
	left int
}

func (l *timed) Receive([]link.Packet) (int, error) {
	if l.left == 0 {
		return 0, net.ErrClosed
	}
	if l.left--; l.left%2 == 0 {
		return 1, nil
	}
	return 0, nil
}

func (l *timed) Reply([]link.Packet) error { return nil }
func (l *timed) Close() error              { return nil }
func (l *timed) Wake()                     {}
func (l *timed) Wait(time.Duration) error  { time.Sleep(time.Second); return nil }

// A loop's time is divided into waiting, calls and frames, also while it waits.
func TestLoadOfALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Loop
		l.Init(Config{Link: &timed{left: 10}, Look: -1})
		if err := l.Post(t.Context(), func() {
			time.Sleep(time.Second)
			l.AddSums(func() { time.Sleep(1500 * time.Millisecond) })
			time.Sleep(500 * time.Millisecond)
		}); err != nil {
			t.Fatal(err)
		}
		l.Start(func() error {
			return l.Serve(func([]link.Packet) error { time.Sleep(10 * time.Second); return nil }, nil)
		}, func(error) {})
		before := l.Load()
		for range 135 { // none of its times runs backwards, whatever the loop does
			time.Sleep(100 * time.Millisecond)
			now := l.Load()
			if now.Waiting < before.Waiting || now.Sums < before.Sums || now.Calls-now.Sums < before.Calls-before.Sums ||
				now.Frames() < before.Frames() {
				t.Errorf("%+v after %+v", now, before)
			}
			before = now
		}
		// In the first wait.
		want := telemetry.Load{Total: 13500 * time.Millisecond, Waiting: 500 * time.Millisecond, Calls: 3 * time.Second,
			Sums: 1500 * time.Millisecond}
		if got := l.Load(); got != want {
			t.Errorf("while it waits: %v, want %v", got, want)
		}
		<-l.Done()
		want.Total, want.Waiting = 57*time.Second, 4*time.Second
		if got := l.Load(); got != want {
			t.Errorf("at its end: %v, want %v", got, want)
		}
	})
}
