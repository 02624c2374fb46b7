// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// bottleneck is a queue that several flows share: it takes a frame each microsecond, and drops
// frames that find it full. Its answers are in the order of the frames, with 40 µs of path delay.
type bottleneck struct {
	room  int     // frames that may wait
	loses float64 // share of frames that are also lost
	fixed bool    // the windows do not adapt

	rng     *rand.Rand
	windows []*Window
	answers events // id is the flow
	free    Time   // when the last frame that waits is taken
	sent    int
	useful  []int // frames that were answered for the first time, by flow
}

const (
	service = us
	path    = 40 * us
	jitter  = 40 * us
)

func newBottleneck(t testing.TB, flows, room int, loses float64) *bottleneck {
	b := &bottleneck{room: room, loses: loses, rng: rand.New(rand.NewPCG(1, uint64(flows))), useful: make([]int, flows)}
	for range flows {
		b.windows = append(b.windows, newWindow(t, Config{Silence: time.Hour}))
	}
	return b
}

func (b *bottleneck) send(now Time, flow int, seq uint32) {
	b.sent++
	at := max(now, b.free) + service
	if at-now > Time(b.room)*service || b.rng.Float64() < b.loses {
		return
	}
	b.free = at
	heap.Push(&b.answers, event{at: at + path + Time(b.rng.Int64N(int64(jitter))), order: b.sent, seq: seq, id: flow})
}

// run lets all flows send as much as they may, and resets the counts after the first half.
func (b *bottleneck) run(length Time) {
	for now := Time(0); now < length; now += service {
		if now == length/2 {
			b.sent = 0
			clear(b.useful)
		}
		for len(b.answers) > 0 && b.answers[0].at <= now {
			e := heap.Pop(&b.answers).(event)
			if _, ok := b.windows[e.id].Ack(now, e.seq); ok {
				b.useful[e.id]++
			}
		}
		// Each goes first in turn, so that none finds the queue empty more often than others.
		first := b.rng.IntN(len(b.windows))
		for i := range b.windows {
			flow := (first + i) % len(b.windows)
			w := b.windows[flow]
			if b.fixed {
				w.limit.bound = float64(w.mask + 1)
			}
			w.Resend(now, func(seq uint32, _ Entry) bool { b.send(now, flow, seq); return true })
			for n := 0; n < 8 && !w.Full(); n++ {
				seq, ok := w.Add(now, Entry{})
				if !ok {
					break
				}
				w.Sent(now, 1)
				b.send(now, flow, seq)
			}
		}
	}
}

// results returns the useful share of the queue's rate, the share of frames sent unnecessarily, and
// Jain's index of fairness.
func (b *bottleneck) results(length Time) (rate, vain, fairness float64) {
	sum, squares := 0.0, 0.0
	for _, n := range b.useful {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum / (float64(length/2) / float64(service)), 1 - sum/float64(b.sent), sum * sum / (float64(len(b.useful)) * squares)
}

// TestFlowsShareAQueue has flows whose windows together are larger than the queue. They keep it
// busy, lose little, and get equal shares. Windows that do not adapt show that the queue is a hard
// case.
func TestFlowsShareAQueue(t *testing.T) {
	const length = 400 * ms
	for _, c := range []struct {
		flows, room int
		fairness    float64
		fixed       float64 // least unnecessary share of windows that do not adapt
	}{{2, 512, 0.99, 0.2}, {8, 512, 0.98, 0.4}, {32, 512, 0.9, 0.6}, {8, 64, 0.98, 0.55}} {
		b := newBottleneck(t, c.flows, c.room, 0)
		b.run(length)
		rate, vain, fairness := b.results(length)
		t.Logf("%d flows into %d frames: rate %.3f, in vain %.3f, fairness %.4f", c.flows, c.room, rate, vain, fairness)
		if most := 0.2 * c.fixed; rate < 0.98 || vain > most || fairness < c.fairness {
			t.Errorf("%d flows into %d frames: rate %.3f, want 0.98; in vain %.3f, want at most %.3f; fairness %.4f, want %.4f",
				c.flows, c.room, rate, vain, most, fairness, c.fairness)
		}
		fixed := newBottleneck(t, c.flows, c.room, 0)
		fixed.fixed = true
		fixed.run(length)
		if _, vain, _ := fixed.results(length); vain < c.fixed {
			t.Errorf("%d flows into %d frames: %.3f in vain with fixed windows, want at least %.3f", c.flows, c.room, vain, c.fixed)
		}
	}
}

// TestBadCableIsNoCongestion loses 1 % of the frames without any queue. The rate is nearly that of
// the queue, which 70 frames in flight would fill.
func TestBadCableIsNoCongestion(t *testing.T) {
	const length = 400 * ms
	b := newBottleneck(t, 1, 10000, 0.01)
	b.run(length)
	if rate, _, _ := b.results(length); rate < 0.95 {
		t.Errorf("%.3f of the rate with 1 %% of the frames lost, want 0.95", rate)
	}
	if bound := b.windows[0].Stats().Bound; bound < 150 || bound > 300 {
		t.Errorf("a bound of %d frames, want some 200", bound)
	}
}

// TestBoundGrowsWhenItIsReached checks that it grows only then: frames that were never sent are no
// evidence of room.
func TestBoundGrowsWhenItIsReached(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Hour})
	var now Time
	round := func(frames int) {
		first := w.NextSeq()
		for range frames {
			w.Full()
			add(t, w, now)
		}
		w.Full()
		now += rtt
		for i := range frames {
			w.Ack(now, first+uint32(i))
		}
	}
	w.limit.bound = 10
	for range 5 {
		round(9)
	}
	if w.Stats().Bound != 10 {
		t.Errorf("a bound of %d, want 10", w.Stats().Bound)
	}
	for range 5 {
		round(w.Stats().Bound)
	}
	if w.Stats().Bound < 14 || w.Stats().Bound > 15 {
		t.Errorf("a bound of %d after 5 full rounds, want 14 or 15", w.Stats().Bound)
	}
}

// TestBoundHasLimits loses nearly all, and then nothing.
func TestBoundHasLimits(t *testing.T) {
	for _, size := range []int{1, 2, 8} {
		w := newWindow(t, Config{Size: size, Silence: time.Hour})
		for range 100 {
			w.limit.lost += 1000
			w.Ack(0, add(t, w, 0))
		}
		if want := min(size, leastFrames); w.Stats().Bound != want {
			t.Errorf("size %d: a bound of %d, want %d", size, w.Stats().Bound, want)
		}
		for range 1000 {
			for !w.Full() {
				add(t, w, 0)
			}
			for seq := w.Base(); seq != w.NextSeq(); seq++ {
				w.Ack(0, seq)
			}
		}
		if w.Stats().Bound != size {
			t.Errorf("a bound of %d, want %d", w.Stats().Bound, size)
		}
	}
}
