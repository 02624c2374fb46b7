// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"slices"
	"sync"
	"testing"
)

// Two parties that reduce in each step use the memory of two steps in turn. If one of them keeps a
// step, because it no longer reduces, the others have two more.
func TestMemoryOfSums(t *testing.T) {
	a, b, barrier := &session{}, &session{}, &barrier{}
	steps := make([]*stepSums, 8)
	for i := range steps {
		steps[i] = barrier.sums.unusedSums()
		if a.sums == steps[i] || b.sums == steps[i] {
			t.Fatalf("step %d takes sums that are in use", i)
		}
		a.keepSums(steps[i])
		if i < 4 {
			b.keepSums(steps[i])
		}
		if again := i >= 2 && steps[i] == steps[i-2]; again != (i >= 2 && i < 5 || i >= 7) {
			t.Errorf("step %d takes the memory of the one before the last: %v", i, again)
		}
	}
}

// SUMS returns the sums of one step, even while later ones reuse the memory of earlier ones.
func TestSumsAreGivenWhole(t *testing.T) {
	const rows, steps = 1000, 2000
	s, barrier := &session{job: &job{cfg: Job{Dim: 1}}}, &barrier{}
	step := func(n int) {
		sums := barrier.sums.unusedSums()
		sums.Keys = slices.Grow(sums.Keys[:0], rows)[:rows]
		sums.Rows = slices.Grow(sums.Rows[:0], rows)[:rows]
		for i := range rows {
			sums.Keys[i], sums.Rows[i] = uint64(n+i), float32(n)
		}
		s.keepSums(sums)
	}
	step(0)
	var group sync.WaitGroup
	ended := make(chan struct{})
	group.Go(func() {
		keys, values := make([]uint64, rows), make([]float32, rows)
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			default:
			}
			if err := s.copySums(keys, values, 0); err != nil {
				t.Error(err)
			}
			for i := range keys {
				if keys[i] != keys[0]+uint64(i) || values[i] != float32(keys[0]) {
					t.Errorf("row %d is of another step than the first", i)
					return
				}
			}
		}
	})
	for n := range steps {
		step(1 + n)
	}
	close(ended)
	group.Wait()
}

// SUMS does not change the users of a step, even if it fails.
func TestGiveSumsLeaves(t *testing.T) {
	s, sums := &session{job: &job{cfg: Job{Dim: 1}}}, &stepSums{Sums: Sums{Keys: []uint64{1}, Rows: []float32{2}}}
	s.keepSums(sums)
	_ = s.copySums(make([]uint64, 1), make([]float32, 1), 0)
	_ = s.copySums(make([]uint64, 1), make([]float32, 1), 9)
	if n := sums.users.Load(); n != 1 {
		t.Errorf("%d users, want 1", n)
	}
}
