// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A contribution for which the link has no room is sent later; so is one for which it has no
// buffer.
func TestLinkWithoutRoom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		h := n.hosts[0]
		h.record()
		h.change(func() { h.room = 0 })
		op := startAll(t, all)
		time.AfterFunc(10*time.Millisecond, func() { h.change(func() { h.room = plenty }) })
		sums := [][]int32{make([]int32, 8), make([]int32, 8)}
		waitAll(t, all, op, sums)
		if sums[0][0] != 3 || len(h.sent) != 1 || h.sent[0].Flags != wire.FlagQuiet {
			t.Errorf("%v, %+v", sums, h.sent)
		}
		kept := h.free
		h.change(func() { h.free = nil })
		time.AfterFunc(5*time.Millisecond, func() { h.change(func() { h.free = kept }) })
		waitAll(t, all, startAll(t, all), sums)
		h.free = nil
		began := time.Now()
		h.stats.LastError = errors.New("cable gone")
		if _, err := all[0].Start(make([]int32, 8)); err == nil || !strings.Contains(err.Error(), "has not sent earlier frames for 12s: is its interface up?; the last error of sending was: cable gone") {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took < DefaultLimit || took > DefaultLimit+time.Second {
			t.Errorf("told after %v", took)
		}
	})
}

// Full frames that are queued leave in one call of the link, in their order: with the next Start,
// Poll, or Wait that has to wait. What the link has no room for then is sent later, and the time in
// the queue is none of an answer's.
func TestQueuedContributionsLeaveTogether(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		small := small
		small.Width = 22
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		h, r := n.hosts[0], all[0]
		h.record()
		values, sums := make([]int32, small.Width), make([]int32, small.Width)
		queue := func(ops int) {
			for range ops {
				if _, err := r.Queue(values); err != nil {
					t.Fatal(err)
				}
			}
		}
		var next Op
		rest := func(calls, frames int) { // of the worker, and what the other one has to do with its operations
			t.Helper()
			if h.calls != calls || len(h.sent) != frames {
				t.Errorf("%d calls have sent %d frames, want %d and %d", h.calls, len(h.sent), calls, frames)
			}
			for i, head := range h.sent {
				if head.Seq != wire.FirstSeq+uint32(next)+uint32(i) {
					t.Errorf("frame %d has number %d", i, head.Seq)
				}
			}
			for ; next < r.next; next++ {
				startAll(t, all[1:])
				for _, r := range all {
					if err := r.Wait(next, sums); err != nil {
						t.Fatal(err)
					}
				}
			}
			h.calls, h.sent, h.at = 0, h.sent[:0], h.at[:0]
		}

		queue(3)
		time.Sleep(time.Second)
		if h.calls != 0 {
			t.Errorf("%d calls before anything is to be sent", h.calls)
		}
		if _, err := r.Start(values); err != nil {
			t.Fatal(err)
		}
		rest(1, 4)
		if slow := r.rtt.timeout(); slow > 100*time.Millisecond {
			t.Errorf("after a second in the queue results are expected in %v", slow)
		}
		queue(2)
		if err := r.Poll(); err != nil {
			t.Fatal(err)
		}
		rest(1, 2)
		queue(4)
		for range 4 {
			startAll(t, all[1:])
		}
		if err := r.Wait(next, sums); err != nil || h.calls != 1 || len(h.sent) != 4 {
			t.Errorf("%v; %d calls have sent %d frames", err, h.calls, len(h.sent))
		}
		for next++; next < r.next; next++ { // whose results are here
			if err := r.Wait(next, sums); err != nil || h.calls != 1 {
				t.Errorf("%v, %d calls", err, h.calls)
			}
		}
		for op := next - 4; op < next; op++ {
			if err := all[1].Wait(op, sums); err != nil {
				t.Fatal(err)
			}
		}
		h.calls, h.sent, h.at = 0, h.sent[:0], h.at[:0]

		h.change(func() { h.room = 1 })
		queue(3)
		time.AfterFunc(10*time.Millisecond, func() { h.change(func() { h.room = plenty }) })
		for range 3 {
			startAll(t, all[1:])
		}
		for ; next < r.next; next++ {
			if err := r.Wait(next, sums); err != nil {
				t.Fatal(err)
			}
		}
		if len(h.sent) != 3 || r.Stats().Repeats != 0 {
			t.Errorf("%d frames, %+v", len(h.sent), r.Stats())
		}
	})
}

// A link that takes no frames for longer than the limit, such as one whose interface stays down,
// ends the Reducer, whose error blames nobody else. One that takes them again before does not.
func TestLinkWithoutRoomIsNotWaitedForForever(t *testing.T) {
	for _, acked := range []bool{false, true} {
		for _, down := range []time.Duration{9 * time.Second, time.Hour} {
			t.Run(fmt.Sprintf("acked %v, for %v", acked, down), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					shape := small
					shape.Acked = acked
					n := newNetwork[int32](t, shape, aggregator.Config{})
					all := workers[int32](t, n, shape)
					h := n.hosts[0]
					h.stats.LastError = errors.New("cable gone")
					h.full = true
					op := startAll(t, all)
					timer := time.AfterFunc(down, func() { h.change(func() { h.full = false }) })
					defer timer.Stop()
					var group sync.WaitGroup
					errs := make([]error, len(all))
					for i, r := range all {
						group.Go(func() { errs[i] = r.Wait(op, nil) })
					}
					began := time.Now()
					group.Wait()
					if down < DefaultLimit {
						if errs[0] != nil || errs[1] != nil {
							t.Fatalf("%v", errs)
						}
						return
					}
					if took := time.Since(began); took > DefaultLimit+time.Second {
						t.Errorf("it took %v", took)
					}
					const want = "the link has not sent earlier frames for 12s: is its interface up?; the last error of sending was: cable gone"
					if errs[0] == nil || !strings.Contains(errs[0].Error(), want) {
						t.Errorf("%v", errs[0])
					}
					var missing *MissingError
					if !errors.As(errs[1], &missing) {
						t.Errorf("%v", errs[1])
					}
				})
			})
		}
	}
}
