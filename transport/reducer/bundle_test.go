// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A frame carries as many operations as fit beside its marks, and is not longer for them.
func TestBundle(t *testing.T) {
	for width, want := range map[int]int{1: 20, 2: 10, 3: 6, 4: 5, 8: 2, 10: 2, 11: 1, 21: 1, 22: 1, 23: 1, 44: 1, 110: 1, 220: 1} {
		if got := (Shape{Width: width}).Bundle(); got != want {
			t.Errorf("width %d: %d operations in a frame, want %d", width, got, want)
		}
	}
}

// What is queued leaves side by side in one frame: when that is full and somebody sends, with the
// next Start or Barrier, or when one of its operations is waited for; not with Poll, whose time is
// not the same at all workers.
func TestBundlesLeave(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		shape := Shape{Workers: 2, Width: 5, InFlight: 8} // four in a frame
		n := newNetwork[int32](t, shape, aggregator.Config{})
		all := workers[int32](t, n, shape)
		h, r := n.hosts[0], all[0]
		h.record()
		queue := func(r *Reducer[int32], ops int) {
			t.Helper()
			for range ops {
				if _, err := r.Queue(slices.Repeat([]int32{int32(r.next) + 1}, shape.Width)); err != nil {
					t.Fatal(err)
				}
			}
		}
		start := func(r *Reducer[int32]) {
			t.Helper()
			startOne(t, r, slices.Repeat([]int32{int32(r.next) + 1}, shape.Width))
		}
		poll := func(r *Reducer[int32]) {
			t.Helper()
			if err := r.Poll(); err != nil {
				t.Fatal(err)
			}
		}
		var began Op
		// same has the other worker make the same calls, and waits for all operations.
		same := func(frames int, calls func(r *Reducer[int32])) {
			t.Helper()
			calls(all[1])
			if len(h.sent) != frames || r.Stats().Repeats != 0 {
				t.Errorf("%d frames, want %d: %+v", len(h.sent), frames, r.Stats())
			}
			sums := make([]int32, shape.Width)
			for ; began < r.next; began++ {
				for _, r := range all {
					if err := r.Wait(began, sums); err != nil || sums[0] != 2*int32(began+1) || sums[4] != sums[0] {
						t.Errorf("operation %d: %v, %v", began, sums, err)
					}
				}
			}
			h.calls, h.sent, h.at = 0, h.sent[:0], h.at[:0]
		}

		queue(r, 3)
		poll(r)
		time.Sleep(time.Second)
		if h.calls != 0 || r.Stats().Repeats != 0 {
			t.Errorf("%d calls before anything is to be sent", h.calls)
		}
		queue(r, 1)
		if h.calls != 0 {
			t.Error("a full frame leaves before anything is sent")
		}
		poll(r)
		same(1, func(r *Reducer[int32]) { queue(r, 4); poll(r) })
		if slow := r.rtt.timeout(); slow > 100*time.Millisecond {
			t.Errorf("after a second in the queue results are expected in %v", slow)
		}

		queue(r, 2)
		start(r)
		same(1, func(r *Reducer[int32]) { queue(r, 2); start(r) })

		queue(r, 5)
		start(r)
		if h.calls != 1 {
			t.Errorf("two frames left in %d calls", h.calls)
		}
		same(2, func(r *Reducer[int32]) { queue(r, 5); start(r) })

		queue(r, 1)
		queue(all[1], 1)
		passed := make(chan error)
		go func() { passed <- all[1].Barrier() }()
		if err := errors.Join(r.Barrier(), <-passed); err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if err := r.Wait(began, nil); err != nil {
				t.Fatal(err)
			}
		}
		began += 2
		same(1, func(r *Reducer[int32]) {})

		queue(r, 2)
		queue(all[1], 2)
		op := began + 1
		waitAll(t, all, op, make([][]int32, 2))
		for _, r := range all {
			if err := r.Wait(began, nil); err != nil {
				t.Fatal(err)
			}
		}
		began += 2
		same(1, func(r *Reducer[int32]) {})

		// A call that is refused closes no frame.
		queue(r, 1)
		if err := r.Wait(began, make([]int32, 1)); !errors.Is(err, ErrUse) {
			t.Error(err)
		}
		queue(r, 3)
		same(0, func(r *Reducer[int32]) { queue(r, 4); poll(r) })
	})
}

// Workers of which one puts other operations into a frame all get an error that says so, and no
// sums.
func TestOutOfStep(t *testing.T) {
	type calls = func(r *Reducer[int32], values []int32) error
	start := func(r *Reducer[int32], values []int32) error { _, err := r.Start(values); return err }
	queue := func(r *Reducer[int32], values []int32) error { _, err := r.Queue(values); return err }
	last := func(r *Reducer[int32], _ []int32) error { return r.Wait(r.next-1, nil) }
	barrier := func(r *Reducer[int32], _ []int32) error { return r.Barrier() }
	for name, c := range map[string]struct {
		most, one []calls // of one worker, and of the others
		want      string
	}{
		"starts":           {[]calls{queue, queue, last}, []calls{start, start, last}, "the frame with operations 0 to 1 has other operations at other workers"},
		"queues":           {[]calls{start, start, last}, []calls{queue, queue, last}, "the frame with operation 0 has other operations at other workers"},
		"waits":            {[]calls{queue, queue, last}, []calls{queue, last, queue, last}, "all must make the same calls of Queue, Start and Barrier, and of Wait for what is queued"},
		"waits not":        {[]calls{queue, last, start, last}, []calls{queue, start, last}, "then start all workers of the job again"},
		"meets at another": {[]calls{queue, start, barrier}, []calls{queue, barrier, start, last}, ""},
		"makes none":       {[]calls{queue, barrier}, []calls{barrier}, "operation"},
	} {
		for _, acked := range []bool{false, true} {
			for workers := 2; workers <= 4; workers++ {
				t.Run(fmt.Sprintf("%s, acked %v, %d workers", name, acked, workers), func(t *testing.T) {
					inBubble(t, func(t *testing.T) { checkOutOfStep(t, workers, acked, c.most, c.one, c.want) })
				})
			}
		}
	}
}

func checkOutOfStep(t *testing.T, count int, acked bool, most, one []func(*Reducer[int32], []int32) error, want string) {
	shape := Shape{Workers: count, Width: 8, InFlight: 4, Acked: acked}
	all := workers[int32](t, newNetwork[int32](t, shape, aggregator.Config{}), shape)
	errs := make([]error, count)
	var group sync.WaitGroup
	for i, r := range all {
		calls := most
		if i == count-1 {
			calls = one
		}
		group.Go(func() {
			for _, call := range calls {
				if errs[i] = call(r, make([]int32, shape.Width)); errs[i] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	var texts []string
	for i, err := range errs {
		var step *OutOfStepError
		if !errors.As(err, &step) || !errors.Is(all[i].Poll(), err) {
			t.Errorf("worker %d: %v", i, err)
		}
		texts = append(texts, fmt.Sprint(err))
	}
	if !strings.Contains(strings.Join(texts, "\n"), want) {
		t.Errorf("%q, want %q", texts, want)
	}
}

// The marks of workers add up to what each expects exactly if all are the same.
func TestMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Shape{
			Workers: rapid.IntRange(1, aggregator.MaxWorkers).Draw(t, "workers"), Width: rapid.IntRange(1, 10).Draw(t, "width"), InFlight: 1,
		}
		job, err := Job[int32](s)
		if err != nil {
			t.Fatal(err)
		}
		marks := marksOf(s, job)
		most := rapid.IntRange(0, len(marks)-1).Draw(t, "most") // the nearer to 0, the more often all are equal
		drawn := rapid.SliceOfN(rapid.IntRange(0, most), s.Workers, s.Workers).Draw(t, "marks")
		var sum [markLanes]uint32
		for _, m := range drawn {
			sum[0], sum[1] = sum[0]+marks[m].own[0], sum[1]+marks[m].own[1]
		}
		equal := slices.Min(drawn) == slices.Max(drawn)
		for _, m := range drawn {
			if (marks[m].sum == sum) != equal {
				t.Fatalf("a worker with %d of %v: %v", m, drawn, sum)
			}
		}
	})
}

// Marks are exact in jobs of all exponents, with as many workers as there can be.
func TestMarksOfAllExponents(t *testing.T) {
	for _, exp := range []int{-100, -46, -1, 1, 60} {
		shape := Shape{Workers: aggregator.MaxWorkers, Width: 1, InFlight: 20, Exp: exp}
		all := workers[float32](t, newNetwork[float32](t, shape, aggregator.Config{}), shape)
		for _, r := range all {
			for range shape.InFlight {
				if _, err := r.Queue([]float32{float32(math.Ldexp(3, exp))}); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Poll(); err != nil {
				t.Fatal(err)
			}
		}
		got := []float32{0}
		if err := all[0].Wait(19, got); err != nil || got[0] != float32(math.Ldexp(3*64, exp)) || all[0].Stats().Frames != 1 {
			t.Errorf("exponent %d: %v, %v, %+v", exp, got, err, all[0].Stats())
		}
	}
}

// A refused value is that of its operation.
func TestRefusedOperationOfBundle(t *testing.T) {
	n := newNetwork[float32](t, small, aggregator.Config{})
	all := workers[float32](t, n, small)
	for _, r := range all {
		large := make([]float32, small.Width)
		large[3] = 1 << 42
		for _, values := range [][]float32{make([]float32, small.Width), large} {
			if _, err := r.Queue(values); err != nil {
				t.Fatal(err)
			}
		}
		_ = r.Poll()
	}
	err := all[1].Wait(0, nil)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Op != 1 || refused.Refusal.Code != wire.CodeOverflow || refused.Refusal.Index != 3 {
		t.Errorf("%v", err)
	}
}

// Results that come for what has not been sent yet change nothing.
func TestForgedAnswersToQueued(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		r, h := all[0], n.hosts[0]
		buffers := len(h.free)
		values := slices.Repeat([]int32{5}, small.Width)
		for range 3 { // a full frame, and an open one
			if _, err := r.Queue(values); err != nil {
				t.Fatal(err)
			}
		}
		for b := range uint16(2) {
			head := wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum, Job: jobID, Sender: 10, Epoch: jobEpoch, Seq: uint32(b) + 1}
			for _, forged := range [][]byte{
				wire.PutError(make([]byte, 64), head, wire.Refusal{Code: wire.CodeUnknownJob}), wire.PutAck(make([]byte, 64), head), sumsOf(head),
			} {
				if forged[1] == byte(wire.FlagSum) {
					for lane := range wire.Lanes {
						wire.StripeAt(forged, 0).SetSlot(lane, b)
					}
				}
				n.mu.Lock()
				h.push(switchAt, forged)
				n.mu.Unlock()
				if n, err := r.receive(); n != 1 || err != nil {
					t.Fatalf("%d, %v", n, err)
				}
			}
		}
		if s := r.Stats(); s.Stray != 6 || s.Results != 0 || len(h.free) != buffers-2 {
			t.Errorf("%+v, %d buffers are free of %d", s, len(h.free), buffers)
		}
		for range 3 {
			if _, err := all[1].Queue(values); err != nil {
				t.Fatal(err)
			}
		}
		got := [][]int32{make([]int32, small.Width), make([]int32, small.Width)}
		for op := range Op(3) {
			waitAll(t, all, op, got)
			if got[0][7] != 10 || got[1][7] != 10 {
				t.Errorf("%v", got)
			}
		}
	})
}

// Whatever the calls of workers and the losses of the network, sums are those of all workers; and
// if one worker has put other operations into a frame, all fail for that.
func TestProperty(t *testing.T) {
	var equal, different int
	test := t
	rapid.Check(t, func(t *rapid.T) {
		shape := Shape{
			Workers: rapid.IntRange(1, 5).Draw(t, "workers"), Width: rapid.IntRange(1, 11).Draw(t, "width"),
			InFlight: rapid.IntRange(1, 40).Draw(t, "in flight"), Acked: rapid.Bool().Draw(t, "acked"),
		}
		ops := rapid.IntRange(1, 60).Draw(t, "operations")
		deviates := rapid.IntRange(0, ops).Draw(t, "deviates")
		seed := rapid.Uint64().Draw(t, "seed")
		loss := rapid.IntRange(0, 10).Draw(t, "loss in %")
		var programs []*program[int32]
		var errs []error
		inBubble(test, func(test *testing.T) { programs, errs = livePrograms(test, shape, ops, deviates, seed, loss) })
		same := true
		for _, p := range programs[1:] {
			// Of those that failed, what they did is known as far as they came.
			n := min(len(p.frames), len(programs[0].frames))
			same = same && slices.Equal(p.frames[:n], programs[0].frames[:n])
		}
		for i, err := range errs {
			var step *OutOfStepError
			if same && err != nil || !same && !errors.As(err, &step) {
				t.Errorf("worker %d, all the same: %v; %v", i, same, err)
			}
		}
		if same {
			equal++
		} else {
			different++
		}
	})
	if equal == 0 || different == 0 {
		t.Errorf("%d were equal, %d different", equal, different)
	}
}

// livePrograms has workers make random operations, over a network that loses frames.
func livePrograms(t *testing.T, shape Shape, ops, deviates int, seed uint64, loss int) ([]*program[int32], []error) {
	n := newNetwork[int32](t, shape, aggregator.Config{})
	drops := rand.New(rand.NewPCG(seed, 1))
	n.loses = func(int, bool, wire.Header) bool { return drops.IntN(100) < loss }
	all := workers[int32](t, n, shape)
	rng := rand.New(rand.NewPCG(seed, 2))
	want := make([][]int32, ops)
	var programs []*program[int32]
	for i, r := range all {
		p := &program[int32]{r: r, calls: rand.New(rand.NewPCG(seed, 3)), own: rand.New(rand.NewPCG(seed, 10+uint64(i))), want: want}
		for op := range ops {
			values := make([]int32, shape.Width)
			want[op] = append(want[op], values...)[:shape.Width]
			for k := range values {
				values[k] = int32(rng.Uint32()) >> 8
				want[op][k] += values[k]
			}
			p.values = append(p.values, values)
		}
		programs = append(programs, p)
	}
	programs[len(programs)-1].deviates = deviates
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, p := range programs {
		group.Go(func() { errs[i] = p.run() })
	}
	group.Wait()
	return programs, errs
}

// Whatever two workers call, no sum is wrong; and neither is told to be out of step alone.
func FuzzCalls(f *testing.F) {
	f.Add(uint8(8), uint8(4), []byte{1, 1, 8}, []byte{0, 0, 8})
	f.Add(uint8(1), uint8(3), []byte{1, 1, 1, 4, 5, 6}, []byte{1, 1, 1, 6, 5, 4})
	f.Add(uint8(4), uint8(130), []byte{1, 2, 1, 3, 0, 7, 6, 5}, []byte{1, 2, 1, 3, 0, 7, 6, 5})
	f.Fuzz(func(t *testing.T, width, inFlight uint8, one, other []byte) {
		inBubble(t, func(t *testing.T) {
			shape := Shape{Workers: 2, Width: 1 + int(width%11), InFlight: 1 + int(inFlight%64), Acked: inFlight >= 128}
			all := workers[int32](t, newNetwork[int32](t, shape, aggregator.Config{}), shape)
			errs := make([]error, 2)
			var group sync.WaitGroup
			for i, calls := range [][]byte{one, other} {
				group.Go(func() { errs[i] = makeCalls(all[i], calls) })
			}
			group.Wait()
			for i, err := range errs {
				var wrong *wrongSums
				var step *OutOfStepError
				if errors.As(err, &wrong) {
					t.Errorf("worker %d: %v", i, err)
				}
				if again := all[1-i].Poll(); errors.As(err, &step) && again == nil {
					t.Errorf("worker %d: %v; the other one: %v", i, err, again)
				}
			}
		})
	})
}

// makeCalls makes calls that are in bytes, the values of operation k being k+1 at both workers.
// Calls that are refused change nothing.
func makeCalls(r *Reducer[int32], calls []byte) error {
	sums := make([]int32, r.cfg.Shape.Width)
	for _, call := range calls {
		var err error
		values := slices.Repeat([]int32{int32(r.next) + 1}, r.cfg.Shape.Width)
		switch {
		case call%8 == 0:
			_, err = r.Start(values)
		case call%8 < 4:
			_, err = r.Queue(values)
		default:
			op := r.next - Op(call%8-3) - Op(call>>5)
			if err = r.Wait(op, sums); err == nil && slices.ContainsFunc(sums, func(s int32) bool { return s != 2*int32(op+1) }) {
				err = &wrongSums{fmt.Sprintf("operation %d: %v", op, sums)}
			}
		}
		if err != nil && !errors.Is(err, ErrUse) {
			return err
		}
	}
	return nil
}
