// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"testing"
	"time"
)

// benchmarks are run on one goroutine, so rates are those of one core. They are of float32 values.
var benchmarks = []struct {
	name         string
	small, sigma float64
}{
	{"small", 0.88, 0.004}, // as gradients of a trained dense model
	{"half", 0.5, 0.004},
	{"normal", 0, 0.02},
	{"large", 0, 0.3},
}

// A frame holds about as many of them.
var numbers = []struct {
	name string
	n    int
}{{"", 1 << 16}, {"/frame", 340}}

func BenchmarkAppend(b *testing.B) {
	eachKind(b, func(c Codec, values []float32, _ []byte) func() error {
		out := make([]byte, MaxLen(len(values)))
		return func() error {
			c.Append(out[:0], values)
			return nil
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	eachKind(b, func(c Codec, values []float32, coded []byte) func() error {
		decoded := make([]float32, len(values))
		return func() error { return c.Decode(decoded, coded) }
	})
}

func eachKind(b *testing.B, prepare func(c Codec, values []float32, coded []byte) func() error) {
	for _, kind := range benchmarks {
		for _, number := range numbers {
			values := gradients(1, number.n, kind.small, kind.sigma)
			c := *made(b, Config{Bound: 10})
			coded := c.Append(nil, values)
			for i, c := range []Codec{c, c.Plain()} {
				b.Run(kind.name+number.name+[2]string{"", "/plain"}[i], func(b *testing.B) {
					timed(b, number.n, prepare(c, values, coded))
					b.ReportMetric(float64(4*number.n)/float64(len(coded)), "ratio")
				})
			}
		}
	}
}

func BenchmarkFit(b *testing.B) {
	values := gradients(1, 1<<16, 0.5, 0.01)
	timed(b, len(values), func() error {
		Fit(values)
		return nil
	})
}

// timed reports the rate of all runs, and that of the fastest, which others on the machine have not
// disturbed: runs of half a millisecond at most, so that some fit between two of theirs.
func timed(b *testing.B, values int, run func() error) {
	repeat := max(1, 1<<14/values) // what is shorter than the clock is precise
	fastest := time.Hour
	for b.Loop() {
		start := time.Now()
		for range repeat {
			if err := run(); err != nil {
				b.Fatal(err)
			}
		}
		fastest = min(fastest, time.Since(start))
	}
	b.SetBytes(int64(4 * values * repeat))
	b.ReportMetric(float64(4*values*repeat)/float64(fastest.Nanoseconds()), "best-GB/s")
}
