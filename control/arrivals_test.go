// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Who arrives last at the end of a step, and when after the first, is counted once a step. An
// arrival that is taken back or repeated does not count. Who has not arrived yet is awaited.
func TestArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := barrierOf([]uint16{1, 2, 3}, 0, func(uint64) error { return nil })
		s := ParameterServer{barrier: b}
		if all := s.Arrivals(); len(all) != 0 {
			t.Errorf("at first: %v", all)
		}
		arrive := func(worker uint16, step uint64) {
			go func() {
				if err := b.wait(t.Context(), worker, step); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		for step := range uint64(4) {
			arrive(1, step)
			if step == 2 {
				b.departWorker(1)
				time.Sleep(time.Hour)
			}
			time.Sleep(time.Millisecond)
			arrive(2, step)
			if step == 2 {
				arrive(1, step)
			}
			time.Sleep(2 * time.Millisecond)
			arrive(2, step) // again, because its connection broke
			time.Sleep(8 * time.Millisecond)
			awaited := 11 * time.Millisecond
			if step == 2 {
				awaited = 10 * time.Millisecond
			}
			if of := s.Arrivals(); len(of) != 3 || of[1].Awaited != 0 || of[2].Awaited != awaited {
				t.Errorf("worker 3 has not reached the end of step %d: %+v", step, of)
			}
			arrive(3, step)
		}
		want := []Arrivals{{Worker: 1, Steps: 4}, {Worker: 2, Steps: 4, After: 3 * time.Millisecond}, {Worker: 3, Steps: 4, Last: 4, After: 43 * time.Millisecond}}
		if diff := cmp.Diff(want, s.Arrivals()); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
		go func() { _ = b.wait(t.Context(), 1, 4) }()
		synctest.Wait()
		b.finishWorker(1) // it has ended although it waits
		time.Sleep(time.Second)
		arrive(2, 4)
		time.Sleep(time.Millisecond)
		arrive(3, 4)
		want[1].Steps, want[2] = 5, Arrivals{Worker: 3, Steps: 5, Last: 5, After: 44 * time.Millisecond}
		if diff := cmp.Diff(want, s.Arrivals()); diff != "" {
			t.Errorf("after the end of a worker that had arrived (-want +got):\n%s", diff)
		}
		b.finishWorker(2)
		arrive(3, 5) // nobody waits for it
		if diff := cmp.Diff(want, s.Arrivals()); diff != "" {
			t.Errorf("after a step of one worker (-want +got):\n%s", diff)
		}
	})
}
