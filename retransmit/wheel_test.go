package retransmit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWheelMatchesSortedList drives a wheel and a plain list of deadlines with
// the same operations.
func TestWheelMatchesSortedList(t *testing.T) {
	const timers = 40
	rapid.Check(t, func(t *rapid.T) {
		w := NewWheel(timers)
		armed := map[int]Time{} // deadline, rounded up to a tick
		var now Time
		delay := func(label string) Time {
			// All magnitudes, so that every level is used.
			return Time(rapid.Uint64().Draw(t, label) >> rapid.IntRange(10, 50).Draw(t, label+" shift"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				id := rapid.IntRange(0, timers-1).Draw(t, "timer")
				deadline := min(now+delay("delay"), 1<<62)
				w.Set(id, deadline)
				armed[id] = (deadline + Time(Tick) - 1) / Time(Tick) * Time(Tick)
			},
			"cancel": func(t *rapid.T) {
				id := rapid.IntRange(0, timers-1).Draw(t, "timer")
				w.Cancel(id)
				delete(armed, id)
			},
			"advance": func(t *rapid.T) {
				now = min(now+delay("step"), 1<<62)
				w.Advance(now)
				var last Time
				for id, ok := w.Fired(); ok; id, ok = w.Fired() {
					deadline, known := armed[id]
					if !known || deadline > now {
						t.Fatalf("timer %d fired at %d; armed %v, deadline %d", id, now, known, deadline)
					}
					last = max(last, deadline)
					w.Cancel(id)
					delete(armed, id)
				}
			},
			"": func(t *rapid.T) {
				next, ok := w.Next()
				if ok != (len(armed) > 0) {
					t.Fatalf("Next reports a timer: %v, with %d armed", ok, len(armed))
				}
				for id, deadline := range armed {
					if deadline < next && deadline > now {
						t.Fatalf("Next is %d, after the deadline %d of timer %d", next, deadline, id)
					}
					if deadline <= now/Time(Tick)*Time(Tick) && next > now {
						t.Fatalf("timer %d is overdue at %d and Next says %d", id, now, next)
					}
				}
			},
		})
		w.Advance(1<<63 - 1)
		for id, ok := w.Fired(); ok; id, ok = w.Fired() {
			delete(armed, id)
			w.Cancel(id)
		}
		if len(armed) != 0 {
			t.Fatalf("never fired: %v", armed)
		}
	})
}

func TestWheelFiresInOrderOfDeadline(t *testing.T) {
	w := NewWheel(4)
	for id, ms := range []Time{900, 3, 40, 3} {
		w.Set(id, ms*1e6)
	}
	w.Advance(1e9)
	var got []int
	for id, ok := w.Fired(); ok; id, ok = w.Fired() {
		got = append(got, id)
		w.Cancel(id)
	}
	if want := []int{1, 3, 2, 0}; !slices.Equal(got, want) {
		t.Fatalf("fired %v, want %v", got, want)
	}
}
