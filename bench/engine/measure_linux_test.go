// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"
)

// Percentiles are those of the sorted times, in microseconds.
func TestRoundTripTimes(t *testing.T) {
	nanos := make([]uint32, 200)
	for i := range nanos {
		nanos[i] = uint32(200-i) * 1000
	}
	now := reading{at: time.Unix(1, 0), lost: map[string]uint64{}}
	later := reading{at: time.Unix(2, 0), frames: 200, lost: map[string]uint64{}}
	s := newSample(now, later, notes{roundTrip: nanos})
	if *s.P50ns != 100e3 || *s.P99ns != 198e3 || s.PPS != 200 {
		t.Errorf("%v ns, %v ns, %v frames a second", *s.P50ns, *s.P99ns, s.PPS)
	}
	if s := newSample(now, later, notes{}); s.P50ns != nil || s.P99ns != nil {
		t.Error("there are percentiles of nothing")
	}
}
