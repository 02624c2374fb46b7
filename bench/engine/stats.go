package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// median returns the middle of the values, or the mean of the two middle ones.
// There must be one at least.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// pick returns one figure of every sample.
func pick(samples []Sample, figure func(Sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = figure(s)
	}
	return values
}

// pickLatency returns the median of a figure that only some tests have.
func pickLatency(samples []Sample, figure func(Sample) *float64) *float64 {
	var values []float64
	for _, s := range samples {
		if v := figure(s); v != nil {
			values = append(values, *v)
		}
	}
	if values == nil {
		return nil
	}
	m := median(values)
	return &m
}

// summarise fills a result from its samples.
func (r *Result) summarise() {
	pps := pick(r.Samples, func(s Sample) float64 { return s.PPS })
	r.PPS, r.PPSMin, r.PPSMax = median(pps), slices.Min(pps), slices.Max(pps)
	r.NsUser = median(pick(r.Samples, func(s Sample) float64 { return s.NsUser }))
	r.NsKernel = median(pick(r.Samples, func(s Sample) float64 { return s.NsKernel }))
	r.NsOpposite = median(pick(r.Samples, func(s Sample) float64 { return s.NsOpposite }))
	r.P50us = pickLatency(r.Samples, func(s Sample) *float64 { return s.P50us })
	r.P99us = pickLatency(r.Samples, func(s Sample) *float64 { return s.P99us })
	r.Drops = map[string]uint64{}
	for _, s := range r.Samples {
		for cause, n := range s.drops {
			if n > 0 {
				r.Drops[cause] += n
			}
		}
	}
}

// compare makes the ratio of ours to a peer's result. Samples with the same index are of the
// same round.
func compare(ours, peer *Result) Ratio {
	ratio := Ratio{Test: peer.Test, Size: peer.Size, Peer: peer.Peer, OfMedians: quotient(ours.PPS, peer.PPS)}
	var paired []float64
	for i := range min(len(ours.Samples), len(peer.Samples)) {
		paired = append(paired, quotient(ours.Samples[i].PPS, peer.Samples[i].PPS))
	}
	ratio.Paired, ratio.PairedMin, ratio.PairedMax = median(paired), slices.Min(paired), slices.Max(paired)
	latency := func(a, b *float64) *float64 {
		if a == nil || b == nil {
			return nil
		}
		q := quotient(*a, *b)
		return &q
	}
	ratio.P50, ratio.P99 = latency(ours.P50us, peer.P50us), latency(ours.P99us, peer.P99us)
	return ratio
}

// quotient is a/b, and 0 where b is: JSON has no infinity, and a peer without a
// single frame is no peer to be compared with.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Range and resolution of the latency histogram: three significant digits up to ten seconds.
const (
	histogramMax    = int64(10 * time.Second)
	histogramDigits = 3
)

// latencies returns the median and the 99th percentile, in microseconds, of
// round-trip times in nanoseconds; nil if there are none.
func latencies(nanos []uint32) (p50, p99 *float64) {
	if len(nanos) == 0 {
		return nil, nil
	}
	h := hdrhistogram.New(1, histogramMax, histogramDigits)
	for _, ns := range nanos {
		// The range holds every uint32: recording cannot fail.
		_ = h.RecordValue(max(1, int64(ns)))
	}
	us := func(quantile float64) *float64 {
		v := float64(h.ValueAtQuantile(quantile)) / 1e3
		return &v
	}
	return us(50), us(99)
}

// difference returns after - before for every counter; a counter that is only
// in one of them counts from or to 0.
func difference(before, after map[string]uint64) map[string]uint64 {
	d := maps.Clone(after)
	for k, v := range before {
		if d[k] >= v {
			d[k] -= v
		}
	}
	return d
}
