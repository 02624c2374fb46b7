// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// upperNs is a bucket's upper bound in nanoseconds, computed otherwise than by the code.
func upperNs(bucket int) float64 { return 1e9 * math.Pow(2, float64(bucket)/perOctave) }

// Every time is in the bucket between whose bounds it is, and the bounds belong to the lower one,
// as Prometheus has it.
func TestBucketsHaveTheBoundsOfPrometheus(t *testing.T) {
	check := func(ns int64) {
		t.Helper()
		i := int(bucketOf(time.Duration(ns)))
		// times of whole nanoseconds are not near the bounds of 2^(k/8) s, except where k/8 is a
		// whole number
		const slack = 1e-12
		if v := float64(ns); i < firstBucket || i > lastBucket ||
			v > upperNs(i)*(1+slack) && i != lastBucket || v <= upperNs(i-1)*(1-slack) {
			t.Fatalf("%d ns are in bucket %d, which is above %.3f and up to %.3f ns", ns, i, upperNs(i-1), upperNs(i))
		}
	}
	for ns := int64(1); ns < 100_000; ns++ {
		check(ns)
	}
	for i := firstBucket; i <= lastBucket; i++ {
		for d := int64(-2); d <= 2; d++ {
			check(max(1, int64(upperNs(i))+d))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		check(int64(math.Exp(rng.Float64() * math.Log(16e9))))
	}
	for s, want := range map[time.Duration]int64{
		time.Second: 0, time.Second + 1: 1, 2 * time.Second: 8, 500 * time.Millisecond: -8, 500*time.Millisecond + 1: -7,
		16 * time.Second: 32, 17 * time.Second: 32, math.MaxInt64: 32, 1: firstBucket,
	} {
		if got := bucketOf(s); got != want {
			t.Errorf("%v is in bucket %d, want %d", s, got, want)
		}
	}
}

// Quantiles differ from the exact ones by the width of a bucket at most, whatever the distribution.
func TestQuantilesAreExactToABucket(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, draw := range map[string]func() float64{
		"uniform":     func() float64 { return 1 + 1e6*rng.Float64() },
		"exponential": func() float64 { return 1 + 1e5*rng.ExpFloat64() },
		"heavy tail":  func() float64 { return 100 * math.Exp(3*rng.NormFloat64()) },
		"two values":  func() float64 { return 700 + 5e6*float64(rng.IntN(2)) },
		"one value":   func() float64 { return 12345 },
	} {
		var h Histogram
		times := make([]time.Duration, 20_000)
		sum := time.Duration(0)
		for i := range times {
			times[i] = time.Duration(max(1, min(draw(), 1.6e10)))
			sum += times[i]
			h.Record(times[i])
		}
		slices.Sort(times)
		d := h.Distribution()
		if d.Count() != uint64(len(times)) || d.Sum != sum || d.Mean() != sum/time.Duration(len(times)) {
			t.Errorf("%s: %d times of %v, mean %v; want %d of %v", name, d.Count(), d.Sum, d.Mean(), len(times), sum)
		}
		for _, q := range []float64{0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
			exact := times[int(math.Ceil(q*float64(len(times))))-1]
			got := d.Quantile(q)
			if r := float64(got) / float64(exact); r > math.Pow(2, 1./perOctave)*1.001 || r < math.Pow(2, -1./perOctave)*0.999 &&
				exact > 10 { // a few nanoseconds are rounded
				t.Errorf("%s: quantile %g is %v, of a sorted list %v", name, q, got, exact)
			}
		}
	}
}

func TestTimesOfNothing(t *testing.T) {
	var h Histogram
	if d := h.Distribution(); d.Count() != 0 || d.Mean() != 0 || d.Quantile(0.5) != 0 || len(d.Counts) != 0 {
		t.Errorf("an empty histogram has %+v", d)
	}
	h.Record(0)
	h.Record(-time.Second)
	h.Record(8)
	d := h.Distribution()
	if d.Zeros != 2 || d.Count() != 3 || d.Sum != 8 || d.Quantile(0.5) != 0 || d.Quantile(1) != 8 {
		t.Errorf("%+v, median %v, largest %v", d, d.Quantile(0.5), d.Quantile(1))
	}
	if len(d.Counts) != 1 {
		t.Errorf("%d buckets for one time", len(d.Counts))
	}
}

// No time is lost if several goroutines record while one reads.
func TestHistogramsAreSharedFreely(t *testing.T) {
	const writers, each = 4, 2000
	var (
		h  Histogram
		wg sync.WaitGroup
	)
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				h.Record(time.Duration(i*each + j + 1))
			}
		})
	}
	for last := uint64(0); last < writers*each; {
		n := h.Distribution().Count()
		if n < last {
			t.Fatalf("%d times after %d", n, last)
		}
		last = n
	}
	wg.Wait()
}

// A program that compares a time with the bounds finds the same bucket.
func TestBoundsAreThoseOfTheBuckets(t *testing.T) {
	bounds := Bounds()
	if len(bounds) != buckets || !slices.IsSorted(bounds) {
		t.Fatalf("%d bounds, sorted: %v", len(bounds), slices.IsSorted(bounds))
	}
	check := func(ns uint64) {
		t.Helper()
		got := 0
		for got < len(bounds)-1 && bounds[got] < ns {
			got++
		}
		if want := bucketOf(time.Duration(ns)); int64(got+firstBucket) != want {
			t.Errorf("by the bounds, %d ns are in bucket %d, want %d", ns, got+firstBucket, want)
		}
	}
	for ns := uint64(1); ns < 5000; ns++ {
		check(ns)
	}
	for _, b := range bounds[:len(bounds)-1] {
		check(b)
		check(b + 1)
	}
}
