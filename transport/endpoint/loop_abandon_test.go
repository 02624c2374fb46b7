// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
)

// woken is a link that does nothing but tell that its loop is to look at what was submitted.
type woken struct {
	link.Link
	wake func()
}

func (w woken) Close() error { return nil }
func (w woken) Wake()        { w.wake() }

// A function whose caller has given up before it began never runs: its caller was told so, and what
// it uses may be gone. The functions behind it do.
func TestAbandonedFunctionNeverRuns(t *testing.T) {
	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	var l Loop
	onceItWaits := func() { cancel(why) }
	l.Init(Config{Link: woken{wake: onceItWaits}})
	if err := l.Do(ctx, func() { t.Error("it runs after its caller has given up") }); err != why { //nolint:errorlint // nothing is wrapped
		t.Errorf("error %v, want %v", err, why)
	}
	next := false
	if err := l.Post(t.Context(), func() { next = true }); err != nil {
		t.Fatal(err)
	}
	if !l.RunPosted() || !next {
		t.Error("the next function does not run")
	}
}

// A function that has begun is waited for, whatever happens to its caller's context.
func TestBegunFunctionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var l Loop
		l.Init(Config{Link: woken{wake: func() {}}})
		l.Start(func() error {
			(<-l.calls)()
			return nil
		}, func(error) {})
		ended := false
		err := l.Do(ctx, func() {
			cancel()
			time.Sleep(time.Second) // Do sees the end of its context meanwhile
			ended = true
		})
		if err != nil || !ended {
			t.Errorf("error %v, has ended: %v", err, ended)
		}
		<-l.Done()
	})
}
