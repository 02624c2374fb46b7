// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// perOctave is the number of buckets in which a time doubles: those of schema 3 of Prometheus's
	// native histograms. A bucket is 9 % wide.
	perOctave = 8
	// firstBucket and lastBucket hold 1 ns and the times up to 16 s, and longer ones.
	firstBucket = -239
	lastBucket  = 4 * perOctave
	buckets     = lastBucket - firstBucket + 1
)

// Histogram counts times, in the buckets of a native histogram of Prometheus that counts seconds:
// bucket i holds the times above 2^((i-1)/8) s, up to 2^(i/8) s. It takes 2.2 KB. The zero value is
// empty. All methods may be called at the same time.
type Histogram struct {
	sum    atomic.Uint64 // ns
	zeros  atomic.Uint64 // times of less than 1 ns
	counts [buckets]atomic.Uint64
}

// Record counts a time. A negative time counts as 0, one of more than 16 s as one of 16 s.
func (h *Histogram) Record(d time.Duration) {
	if d <= 0 {
		h.zeros.Add(1)
		return
	}
	h.sum.Add(uint64(d))
	h.counts[bucketOf(d)-firstBucket].Add(1)
}

// thresholds are the mantissas of 2^(k/8), as Prometheus has them.
var thresholds = [perOctave]float64{
	1, 2 * 0.5452538663326288, 2 * 0.5946035575013605, 2 * 0.6484197773255048,
	2 * 0.7071067811865475, 2 * 0.7711054127039704, 2 * 0.8408964152537144, 2 * 0.9170040432046711,
}

const (
	mantissaBits = 52
	mantissaMask = 1<<mantissaBits - 1
	exponentBias = 1023
)

// steps has an element for each sixteenth of an octave, which holds one threshold at most: how many
// are below it, and the bits of the one in it.
var steps = func() (s [16]struct {
	below     int64
	threshold uint64
}) {
	for i := range s {
		s[i].threshold = math.MaxUint64
	}
	for k, t := range thresholds {
		m := math.Float64bits(t) & mantissaMask
		at := m >> (mantissaBits - 4)
		s[at].threshold = m
		for i := at + 1; i < 16; i++ {
			s[i].below = int64(k) + 1
		}
	}
	return s
}()

// bucketOf returns the bucket of a time of 1 ns or more.
func bucketOf(d time.Duration) int64 {
	b := math.Float64bits(float64(d) / 1e9)
	m := b & mantissaMask
	step := &steps[m>>(mantissaBits-4)]
	i := (int64(b>>mantissaBits)-exponentBias)*perOctave + step.below
	if m > step.threshold {
		i++
	}
	return min(i, lastBucket)
}

// Distribution is the content of a [Histogram] at one time. Counts has the buckets from First on,
// up to the last with a count.
type Distribution struct {
	Zeros  uint64 // times of less than 1 ns
	Sum    time.Duration
	First  int
	Counts []uint64
}

// Distribution returns a histogram's content. Times that are recorded meanwhile may be missing.
func (h *Histogram) Distribution() Distribution {
	d := DistributionOf(h.sum.Load(), len(h.counts), func(i int) uint64 { return h.counts[i].Load() })
	d.Zeros = h.zeros.Load()
	return d
}

// Bounds returns the largest time of each bucket in nanoseconds, from the lowest bucket on. Buckets
// of less than a nanosecond's width may have the bound of the one before them, and then no time.
func Bounds() []uint64 {
	bounds := make([]uint64, buckets)
	for i := range bounds {
		bound := time.Duration(1e9 * math.Exp2(float64(firstBucket+i)/perOctave))
		for bucketOf(bound+1) <= int64(firstBucket+i) && i < buckets-1 {
			bound++
		}
		for bound > 1 && bucketOf(bound) > int64(firstBucket+i) {
			bound--
		}
		bounds[i] = uint64(bound)
	}
	bounds[buckets-1] = math.MaxUint64
	return bounds
}

// DistributionOf returns the distribution of n counts from the lowest bucket on, and of the sum of
// their times in nanoseconds.
func DistributionOf(sum uint64, n int, count func(i int) uint64) Distribution {
	d := Distribution{Sum: time.Duration(sum)}
	for i := range n {
		n := count(i)
		switch {
		case n == 0 && d.Counts == nil:
		case d.Counts == nil:
			d.First = firstBucket + i
			fallthrough
		default:
			d.Counts = append(d.Counts, n)
		}
	}
	for n := len(d.Counts); n > 0 && d.Counts[n-1] == 0; n-- {
		d.Counts = d.Counts[:n-1]
	}
	return d
}

// Count returns the number of times.
func (d Distribution) Count() uint64 {
	n := d.Zeros
	for _, c := range d.Counts {
		n += c
	}
	return n
}

// Mean returns the mean time, 0 if there is none.
func (d Distribution) Mean() time.Duration {
	n := d.Count()
	if n == 0 {
		return 0
	}
	return d.Sum / time.Duration(n)
}

// Quantile returns the time up to which a share q of the times are, 0 if there is none. The error
// is the width of a bucket at most, 9 %: within one, times count as evenly spread on a logarithmic
// scale.
func (d Distribution) Quantile(q float64) time.Duration {
	n := d.Count()
	rank := q*float64(n) - float64(d.Zeros)
	if n == 0 || rank <= 0 {
		return 0
	}
	for i, c := range d.Counts {
		if c == 0 {
			continue
		}
		if rank <= float64(c) || i == len(d.Counts)-1 {
			upper := float64(d.First + i)
			share := min(1, rank/float64(c))
			return time.Duration(math.Round(1e9 * math.Exp2((upper-1+share)/perOctave)))
		}
		rank -= float64(c)
	}
	return 0
}
