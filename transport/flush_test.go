// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// TestAbandonedFlush cancels a Flush before the refusal arrives: the next one reports it, and the
// one after that does not.
func TestAbandonedFlush(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour})
	if _, err := w.Push(ctx, []uint64{77}, make([]float32, testDim)); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(next(ctx, t, server).Payload)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := w.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Flush of an unanswered push: %v", err)
	}
	server.deliver(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeOverflow}), w.link.Local())
	for refusals := uint64(0); refusals == 0; {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		refusals = refused(s.Refusals[:])
	}
	if err := w.Flush(ctx); !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("the next Flush: %v; want the refusal that no call has returned", err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Errorf("the Flush after that: %v", err)
	}
}

// TestFlushesThatEndTogether checks that they return the same refusal.
func TestFlushesThatEndTogether(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour})
	if _, err := w.Push(ctx, []uint64{77}, make([]float32, testDim)); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(next(ctx, t, server).Payload)
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- w.Flush(ctx) }()
	}
	for waiting := 0; waiting < 2; {
		if err := w.Do(ctx, func() { waiting = len(w.flushes) }); err != nil {
			t.Fatal(err)
		}
	}
	server.deliver(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeOverflow}), w.link.Local())
	for range 2 {
		if err := <-results; !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
			t.Errorf("Flush: %v, want the refusal", err)
		}
	}
	if err := w.Flush(ctx); err != nil {
		t.Errorf("the Flush after that: %v", err)
	}
}

// All waiting flushes get a refusal: the refused push may be of the caller whose flush ends last.
func TestFlushesThatWaitTogether(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour})
	push := func() (h wire.Header) {
		t.Helper()
		_, err := w.Push(ctx, []uint64{77}, make([]float32, testDim))
		if err == nil {
			h, err = wire.ParseHeader(next(ctx, t, server).Payload)
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	flush := func(waiting int) chan error {
		t.Helper()
		result := make(chan error, 1)
		go func() { result <- w.Flush(ctx) }()
		for there := 0; there < waiting; {
			if err := w.Do(ctx, func() { there = len(w.flushes) }); err != nil {
				t.Fatal(err)
			}
		}
		return result
	}
	acknowledge := func(h wire.Header) {
		answer := make([]byte, wire.HeaderLen)
		h.Type, h.Flags = wire.TypeAck, 0
		h.Put(answer)
		server.deliver(answer, w.link.Local())
	}
	one := push()
	first := flush(1)
	two, three := push(), push()
	last := flush(2)
	server.deliver(wire.PutError(make([]byte, wire.ErrorLen), two, wire.Refusal{Code: wire.CodeOverflow}), w.link.Local())
	acknowledge(one)
	if err := <-first; !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("the flush that ends first: %v", err)
	}
	acknowledge(three)
	if err := <-last; !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("the flush behind the push that was refused: %v", err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Errorf("the flush after that: %v", err)
	}
}

// TestRefusalOfAnAbandonedPushSum checks that Flush reports it, because its caller no longer waits.
func TestRefusalOfAnAbandonedPushSum(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour})
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	values := make([]float32, testDim)
	if err := w.PushSum(short, []uint64{77}, values, values); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(next(ctx, t, server).Payload)
	if err != nil {
		t.Fatal(err)
	}
	server.deliver(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeOverflow}), w.link.Local())
	if err := w.Flush(ctx); !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("Flush: %v, want the refusal that no call has returned", err)
	}
}

// TestFlushPassesOverAPushThatIsGivenUp waits for the pushes before a cancelled one, which was the
// last when the flush began and is no longer sent.
func TestFlushPassesOverAPushThatIsGivenUp(t *testing.T) {
	ctx := deadline(t)
	const window = 4
	w, server := mute(t, retransmit.Config{Size: window, Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour})
	keys := make([]uint64, 2000) // more frames than fit the window, and all cold
	for i := range keys {
		keys[i] = 1<<40 + uint64(i)
	}
	pushed, given := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.Push(ctx, keys, make([]float32, len(keys)*testDim))
		pushed <- err
	}()
	var frames [window]wire.Header
	for i := range frames {
		var err error
		if frames[i], err = wire.ParseHeader(next(ctx, t, server).Payload); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, ready func() bool) {
		for seen := false; !seen; {
			if err := w.Do(ctx, func() { seen = ready() }); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	short, giveUp := context.WithCancel(ctx)
	go func() {
		_, err := w.Push(short, keys[:1], make([]float32, testDim))
		given <- err
	}()
	until("the second push", func() bool { return len(w.pushes) == 2 })
	flushed := make(chan error, 1)
	go func() { flushed <- w.Flush(ctx) }()
	until("the flush", func() bool { return len(w.flushes) == 1 })
	giveUp()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Fatalf("the second push: %v", err)
	}
	until("its end", func() bool { return len(w.pushes) == 1 })
	for _, h := range frames {
		answer := make([]byte, wire.HeaderLen)
		h.Type, h.Flags = wire.TypeAck, 0
		h.Put(answer)
		server.deliver(answer, w.link.Local())
	}
	next(ctx, t, server) // the window has moved on
	select {
	case err := <-flushed:
		t.Errorf("the flush ends with %v while the push before it has frames to send", err)
	case <-time.After(10 * time.Millisecond):
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-pushed; !errors.Is(err, ErrClosed) {
		t.Errorf("the first push: %v", err)
	}
}
