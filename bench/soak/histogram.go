package soak

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// newHistogram makes a histogram of times in nanoseconds: three significant
// digits up to an hour.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Hour), 3)
}

// record adds a time; one beyond the range counts as its end.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(1, ns), int64(time.Hour)))
}

// Times are percentiles of times, in nanoseconds.
type Times struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50_ns"`
	P90   int64 `json:"p90_ns"`
	P99   int64 `json:"p99_ns"`
	Max   int64 `json:"max_ns"`
}

func summary(h *hdrhistogram.Histogram) Times {
	return Times{
		Count: h.TotalCount(), P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90),
		P99: h.ValueAtQuantile(99), Max: h.Max(),
	}
}
