package transport

import (
	"errors"
	"runtime"
	"testing"

	"github.com/libra-ina/libra/link"
)

// deadBefore is a link without traffic. Who wakes its loop goes on only when that is
// dead.
type deadBefore struct {
	link.Link
	loop *loop
}

func (d deadBefore) Receive([]link.Packet) (int, error) { return 0, nil }
func (d deadBefore) Close() error                       { return nil }
func (d deadBefore) Wake()                              { <-d.loop.dead }

// Do returns no error for a function that was run, also if it was the last one: a
// commit that counts as failed would be repeated.
func TestDoOfALoopsLastFunction(t *testing.T) {
	for range 50 { // both are over when Do looks: it must not matter which it sees
		var l loop
		l.init(deadBefore{loop: &l})
		ran := false
		posted := make(chan struct{})
		l.start(func() error {
			<-posted
			return l.serve(func([]link.Packet) error { return nil })
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

// Who closes an endpoint gets no error of what broke meanwhile, and neither do calls
// that end with it.
func TestCloseIsTheReason(t *testing.T) {
	var l loop
	l.init(deadBefore{loop: &l})
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
