// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/retransmit"
)

// The time in which no call is under way is the program's own; what a worker sends by itself is
// none.
func TestOwnTime(t *testing.T) {
	p := measuring(t, 0, 0)
	step := func(d time.Duration) { p.clock += retransmit.Time(d) }
	turn := func() {
		t.Helper()
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(pushes uint64, own time.Duration, silent bool) {
		t.Helper()
		s := p.snapshot()
		if s.Pushes != pushes || s.Own != own || (s.SilentCold[0] > 0) != silent || s.SilentHot != 0 {
			t.Errorf("%d pushes, %v own, silent %v, want %d, %v, %v", s.Pushes, s.Own, s.SilentCold, pushes, own, silent)
		}
	}
	turn()
	before := p.snapshot().Own
	push := func() {
		o := &operation{queued: true, keys: []uint64{1}, values: make([]float32, testDim)}
		p.pushes = append(p.pushes, o)
		turn()
	}
	step(5 * time.Millisecond)
	push()
	check(0, before+5*time.Millisecond, false)
	step(7 * time.Millisecond)
	push() // while the first one is under way
	check(0, before+5*time.Millisecond, true)
	for p.answer() > 0 {
		turn()
	}
	check(2, before+5*time.Millisecond, false)
	step(2 * time.Millisecond)
	turn()
	check(2, before+7*time.Millisecond, false)
}
