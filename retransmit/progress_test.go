// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

// TestProgress bounds how long 20,000 frames take, in the simulation's time, and how
// often they are repeated, on networks that are bad in one way each. A window of 128
// takes 64 µs to send, and a round trip is 40 µs: some 13 ms in all.
func TestProgress(t *testing.T) {
	const frames = 20_000
	for _, c := range []struct {
		name     string
		faults   faults
		most     time.Duration
		needless func(*sim) int // repetitions allowed beyond what was lost
	}{
		{"no faults", faults{}, 15 * time.Millisecond, func(*sim) int { return 0 }},
		// 400 losses of frames and answers: to wait for a timeout at each window would take 800 ms.
		{"1 % lost", faults{drop: 0.01}, 100 * time.Millisecond, func(s *sim) int { return s.lost / 10 }},
		{"10 % lost", faults{drop: 0.1}, 1500 * time.Millisecond, func(s *sim) int { return s.lost / 10 }},
		{"1 % lost, reordered", faults{drop: 0.01, delay: 200 * time.Microsecond}, 400 * time.Millisecond, func(s *sim) int { return frames / 5 }},
		{"1 % doubled", faults{duplicate: 0.01}, 15 * time.Millisecond, func(*sim) int { return 0 }},
		// Some 40 stalls of 25 ms: a probe after 5, 10 and 20 ms of each, not a window.
		{"stalls", faults{stall: 0.001, outage: 50 * time.Millisecond}, 3 * time.Second, func(s *sim) int { return 4 * s.outages }},
		{"dark times", faults{dark: 0.001, outage: 50 * time.Millisecond}, 4 * time.Second, func(s *sim) int { return s.lost }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(5) {
				s := newSim(c.faults, seed, frames, 128, wire.FirstSeq, &Filter{})
				if err := s.run(); err != nil {
					t.Fatal(err)
				}
				st := s.window.Stats()
				t.Logf("%v, %d lost, %d outages, %+v", time.Duration(s.now), s.lost, s.outages, st)
				if s.now > Time(c.most) {
					t.Errorf("seed %d: %v, want less than %v", seed, time.Duration(s.now), c.most)
				}
				if n := int(st.Retransmitted) - s.lost; n > c.needless(s) {
					t.Errorf("seed %d: %d repetitions more than the %d frames and answers that were lost", seed, n, s.lost)
				}
				if st.Acked != frames || st.Sent != frames || s.window.Outstanding() != 0 {
					t.Errorf("seed %d: %+v", seed, st)
				}
			}
		})
	}
}
