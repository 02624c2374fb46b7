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
	if *s.P50us != 100 || *s.P99us != 198 || s.PPS != 200 {
		t.Errorf("%v µs, %v µs, %v frames a second", *s.P50us, *s.P99us, s.PPS)
	}
	if s := newSample(now, later, notes{}); s.P50us != nil || s.P99us != nil {
		t.Error("there are percentiles of nothing")
	}
}
