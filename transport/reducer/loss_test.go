// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// An operation whose frames are lost, once or for a while, has its result as soon as one copy of
// each arrives.
func TestLostFramesAreRepeated(t *testing.T) {
	for name, loses := range map[string]func(worker int, up bool, h wire.Header) bool{
		"a contribution":    func(worker int, up bool, h wire.Header) bool { return up && worker == 1 && h.Flags&wire.FlagRetx == 0 },
		"all contributions": func(_ int, up bool, h wire.Header) bool { return up && h.Flags&wire.FlagRetx == 0 },
		"a result":          func(worker int, _ bool, h wire.Header) bool { return worker == 0 && h.Flags&wire.FlagAll != 0 },
		"all results":       func(_ int, _ bool, h wire.Header) bool { return h.Flags&wire.FlagAll != 0 },
		"a contribution, and all results": func(worker int, up bool, h wire.Header) bool {
			return up && worker == 1 && h.Flags&wire.FlagRetx == 0 || h.Flags&wire.FlagAll != 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork[int32](t, small, aggregator.Config{})
				all := workers[int32](t, n, small)
				n.loses = loses
				sums := [][]int32{make([]int32, 8), make([]int32, 8)}
				for range 3 {
					began := time.Now()
					waitAll(t, all, startAll(t, all), sums)
					if want := slices.Repeat([]int32{3}, 8); !slices.Equal(sums[0], want) || !slices.Equal(sums[1], want) {
						t.Fatalf("%v", sums)
					}
					if took := time.Since(began); took > 2*maxTimeout {
						t.Errorf("it took %v", took)
					}
				}
				if all[0].Stats().Repeats+all[1].Stats().Repeats == 0 {
					t.Error("nothing was repeated")
				}
			})
		})
	}
}

// The result of a later operation shows that an earlier frame is lost: no time passes.
func TestLaterResultsHurry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[float32](t, small, aggregator.Config{})
		all := workers[float32](t, n, small)
		began := time.Now()
		n.loses = func(worker int, up bool, h wire.Header) bool { // operation 1's contribution, and operation 2's result
			return up && worker == 0 && h.Seq == 2 && h.Flags&wire.FlagRetx == 0 || !up && worker == 1 && h.Flags&wire.FlagAll != 0 && h.Seq == 0 && n.rounds(t) == 2
		}
		var ops []Op
		for range small.InFlight {
			ops = append(ops, startAll(t, all))
		}
		for _, op := range ops {
			for i, r := range all {
				sums := make([]float32, small.Width)
				if err := r.Wait(op, sums); err != nil || sums[7] != 3 {
					t.Errorf("worker %d, operation %d: %v, %v", i, op, sums, err)
				}
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if s := all[0].Stats(); s.Hurried == 0 || s.Repeats != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// rounds returns how many rounds are complete. Its caller is asked whether a payload is lost.
func (n *network) rounds(t *testing.T) uint64 {
	c, err := n.model.JobCounters(jobID)
	if err != nil {
		t.Error(err)
	}
	return c.Rounds
}

// The time until a repetition follows the time that results take, and doubles; a repetition asks
// who has contributed.
func TestTimesOfRepetitions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		values := make([]int32, small.Width)
		for range 100 { // results take 2 ms
			op := startOne(t, all[0], values)
			time.Sleep(2 * time.Millisecond)
			if err := all[1].Wait(startOne(t, all[1], values), nil); err != nil {
				t.Fatal(err)
			}
			if err := all[0].Wait(op, nil); err != nil {
				t.Fatal(err)
			}
		}
		h := n.hosts[0]
		h.record()
		began := time.Now()
		op := startOne(t, all[0], values)
		go func() {
			time.Sleep(100 * time.Millisecond)
			if err := all[1].Wait(startOne(t, all[1], values), nil); err != nil {
				t.Error(err)
			}
		}()
		if err := all[0].Wait(op, nil); err != nil {
			t.Fatal(err)
		}
		var after []time.Duration
		for i, at := range h.at {
			after = append(after, at.Sub(began).Round(100*time.Microsecond))
			want := wire.FlagQuiet
			if i > 0 {
				want = wire.FlagRetx | wire.FlagCover
			}
			if h.sent[i].Flags != want || h.sent[i].Seq != h.sent[0].Seq {
				t.Errorf("frame %d: %+v", i, h.sent[i])
			}
		}
		const ms = time.Millisecond
		if want := []time.Duration{0, 2 * ms, 6 * ms, 14 * ms, 30 * ms, 46 * ms, 62 * ms, 78 * ms, 94 * ms}; !slices.Equal(after, want) {
			t.Errorf("sent after %v, want %v", after, want)
		}
	})
}

func startOne[T Value](t *testing.T, r *Reducer[T], values []T) Op {
	t.Helper()
	op, err := r.Start(values)
	if err != nil {
		t.Error(err)
	}
	return op
}

// Results that come at once are asked for after a quarter of a millisecond, and before the first
// has come after 16 ms.
func TestTimeouts(t *testing.T) {
	var e estimator
	if d := e.timeout(); d != maxTimeout {
		t.Errorf("%v before the first result", d)
	}
	for range 100 {
		e.sample(time.Microsecond)
	}
	if d := e.timeout(); d != minTimeout {
		t.Errorf("%v after fast results", d)
	}
	e.sample(time.Hour)
	if d := e.timeout(); d != maxTimeout {
		t.Errorf("%v after a slow one", d)
	}
}

// A worker that does not contribute is named when the limit has passed, and so are those that have
// not joined.
func TestMissingWorkersAreNamed(t *testing.T) {
	shape := Shape{Workers: 4, Width: 3, InFlight: 2}
	members := func(ids ...uint16) func(context.Context) ([]uint16, error) {
		return func(context.Context) ([]uint16, error) { return ids, nil }
	}
	for name, c := range map[string]struct {
		admitted, contribute int
		each                 bool // the aggregator ignores COVER
		silent               bool
		members              func(context.Context) ([]uint16, error)
		want                 string
		missing              []uint16
		absent               int
	}{
		"one":      {4, 3, false, false, members(10, 20, 30, 40), "worker 40 did not contribute: start all workers of the job again.", []uint16{40}, 0},
		"three":    {4, 1, false, false, members(10, 20, 30, 40), "workers 20, 30 and 40 did not contribute", []uint16{20, 30, 40}, 0},
		"absent":   {2, 2, false, false, members(10, 20), "2 of the job's workers did not join it", nil, 2},
		"both":     {3, 2, false, false, members(10, 20, 30), "worker 30 did not contribute, and 1 of the job's workers did not join it", []uint16{30}, 1},
		"unknown":  {4, 3, true, false, members(10, 20, 30, 40), "other workers did not contribute, and the aggregator does not tell which", nil, 0},
		"unnamed":  {4, 3, false, false, nil, "other workers did not contribute (the Reducer has no list", nil, 0},
		"unlisted": {4, 3, false, false, func(context.Context) ([]uint16, error) { return nil, errors.New("no way") }, "members is not available: no way", nil, 0},
		"silent":   {4, 3, false, true, members(10, 20, 30, 40), "the aggregator 10.0.0.254:19522 does not answer: is it running and reachable? The last error of sending was: cable gone.", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork[int32](t, shape, aggregator.Config{AnswerEach: c.each})
				n.admit(t, c.admitted)
				if c.silent {
					n.loses = func(int, bool, wire.Header) bool { return true }
					n.hosts[0].stats.LastError = errors.New("cable gone")
				}
				var all []*Reducer[int32]
				for i := range c.contribute {
					cfg := n.config(i, shape)
					cfg.Limit, cfg.Members = 300*time.Millisecond, c.members
					all = append(all, open[int32](t, cfg))
				}
				op := startAll(t, all)
				began := time.Now()
				err := all[0].Wait(op, nil)
				var missing *MissingError
				if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.want) || !slices.Equal(missing.Missing, c.missing) ||
					missing.Absent != c.absent || missing.Silent != c.silent {
					t.Errorf("%v: %+v", err, missing)
				}
				if took := time.Since(began); took < 300*time.Millisecond || took > 400*time.Millisecond {
					t.Errorf("told after %v", took)
				}
				if again := all[0].Poll(); !errors.Is(again, err) {
					t.Errorf("and then: %v", again)
				}
			})
		})
	}
}

// A caller that computes for long is no reason to give up, or to name anybody.
func TestCallersPauseIsNoSilence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		op := startOne(t, all[0], make([]int32, small.Width))
		for range 10 {
			time.Sleep(time.Minute)
			if err := all[0].Poll(); err != nil {
				t.Fatal(err)
			}
		}
		if s := all[0].Stats(); s.Repeats != 10 {
			t.Errorf("%+v", s)
		}
		waitAll(t, all, startOne(t, all[1], make([]int32, small.Width)), make([][]int32, 2))
		if op != 0 {
			t.Errorf("operation %d", op)
		}
	})
}

// A refused contribution is the end, with the aggregator's reason and a remedy.
func TestRefusals(t *testing.T) {
	n := newNetwork[float32](t, small, aggregator.Config{})
	all := workers[float32](t, n, small)
	half := make([]float32, small.Width)
	half[3] = 1 << 42
	startOne(t, all[0], half)
	op := startOne(t, all[1], half)
	err := all[1].Wait(op, nil)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeOverflow || refused.Refusal.Index != 3 || refused.Sender != 20 ||
		!errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("%v", err)
	}
	if err := n.model.RemoveJob(jobID); err != nil {
		t.Fatal(err)
	}
	op = startOne(t, all[0], half)
	if err = all[0].Wait(op, nil); !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeUnknownJob ||
		!strings.Contains(err.Error(), wire.CodeUnknownJob.Remedy()) {
		t.Errorf("%v", err)
	}
}

// A worker whose operations are wider than the job's is refused, in both modes.
func TestUnequalWidths(t *testing.T) {
	for _, shape := range []Shape{small, smallAcked} {
		n := newNetwork[int32](t, shape, aggregator.Config{})
		n.admit(t, shape.Workers)
		wide := shape
		wide.Width = 23
		r := open[int32](t, n.config(1, wide))
		op := startOne(t, r, make([]int32, wide.Width))
		err := r.Wait(op, nil)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeLength || refused.Refusal.Value != 1 {
			t.Errorf("%+v: %v", shape, err)
		}
	}
}

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

// What is not the answer of the aggregator to something that waits changes nothing, and is counted.
func TestForgedAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) { // a repetition would be answered
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		r, h := all[0], n.hosts[0]
		startOne(t, r, make([]int32, small.Width))
		other := switchAt
		other.IP = netip.MustParseAddr("10.0.0.253")
		base := wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum, Job: jobID, Sender: 10, Epoch: jobEpoch, Seq: 1}
		sums := func(change func(*wire.Header, *wire.Stripe)) []byte {
			p := make([]byte, wire.HotLen(1))
			head, s := base, wire.StripeAt(p, 0)
			s.SetMask(wire.LaneMask)
			change(&head, s)
			head.Put(p)
			return p
		}
		answer := func(f func([]byte, wire.Header) []byte, seq uint32) []byte {
			head := base
			head.Seq = seq
			return f(make([]byte, 64), head)
		}
		refusal := func(b []byte, head wire.Header) []byte {
			return wire.PutError(b, head, wire.Refusal{Code: wire.CodeUnknownJob})
		}
		rows := func(b []byte, head wire.Header) []byte {
			head.Type, head.Flags = wire.TypeRows, 0
			head.Put(b)
			return b
		}
		for name, c := range map[string]struct {
			from    wire.Endpoint
			payload []byte
			want    verdict
		}{
			"from another host":     {other, sums(func(*wire.Header, *wire.Stripe) {}), stray},
			"of another job":        {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Job++ }), stray},
			"of another epoch":      {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Epoch++ }), stray},
			"to another worker":     {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Sender = 20 }), stray},
			"of another number":     {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Seq = 2 }), stray},
			"of another round":      {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Flags |= wire.FlagAll; h.Sender = wire.AllSenders }), stray},
			"to all, but to one":    {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Flags |= wire.FlagAll; h.Seq = 0 }), stray},
			"of an idle group":      {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetSlot(0, 1) }), stray},
			"of no group":           {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetSlot(0, 4) }), malformed},
			"with a lane missing":   {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetMask(1) }), malformed},
			"with two stripes":      {switchAt, append(sums(func(*wire.Header, *wire.Stripe) {}), make([]byte, wire.StripeLen)...), malformed},
			"a refusal, cut":        {switchAt, answer(refusal, 1)[:15], malformed},
			"a refusal of others":   {switchAt, answer(refusal, 2), stray},
			"a refusal of nothing":  {switchAt, answer(refusal, 0), stray},
			"an ACK of nothing":     {switchAt, answer(wire.PutAck, 7), stray},
			"an ACK with a tail":    {switchAt, append(answer(wire.PutAck, 1), 1), malformed},
			"an answer of a server": {switchAt, answer(rows, 1), stray},
			"no header":             {switchAt, []byte{1, 2, 3}, malformed},
		} {
			before := r.Stats()
			n.mu.Lock()
			h.push(c.from, c.payload)
			n.mu.Unlock()
			if err := r.Poll(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			after := r.Stats()
			if g := r.groups[0]; g.state != waiting || g.answered || (c.want == stray) != (after.Stray > before.Stray) ||
				(c.want == malformed) != (after.Malformed > before.Malformed) {
				t.Errorf("%s: %+v, then %+v", name, before, after)
			}
		}
		got := make([]int32, small.Width)
		op := startAll(t, all[1:])
		if err := r.Wait(op, got); err != nil || got[0] != 1 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// Poll takes results without waiting for them.
func TestPoll(t *testing.T) {
	n := newNetwork[int32](t, small, aggregator.Config{})
	all := workers[int32](t, n, small)
	for range small.InFlight {
		startAll(t, all)
	}
	for _, r := range all {
		if err := r.Poll(); err != nil {
			t.Fatal(err)
		}
		if r.Stats().Results != uint64(small.InFlight) || r.first != r.sent {
			t.Errorf("%+v", r.Stats())
		}
	}
}

func ExampleMissingError() {
	err := &MissingError{Op: 12, Waited: 2 * time.Second, Missing: []uint16{3}}
	fmt.Println(err)
	// Output: reducer: operation 12 has no result after 2s of repetitions: worker 3 did not contribute: start all workers of the job again.
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
