// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// cpuTime returns this process's CPU time in nanoseconds. Unlike wall time it does not depend on
// other load.
func cpuTime(tb testing.TB) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		tb.Fatal(err)
	}
	return t.Nano()
}

// BenchmarkSteps measures the cost of a pair step by step: sorted batches of 4,096 distinct keys in
// dense frames, as a worker pushes them. With 1,024 batches, keys and gradients come from memory;
// 16 stay in the cache.
func BenchmarkSteps(b *testing.B) {
	for name, n := range map[string]int{"cached": 16, "streamed": 1024} {
		batches := benchBatches(n, 4096, 1, true)
		for _, t := range batches {
			slices.Sort(t.keys)
		}
		p, err := New(Config{HotSet: benchHotSet(b, 1), Layout: Dense, Stripes: wire.DefaultStripes})
		if err != nil {
			b.Fatal(err)
		}
		frames := &ring{}
		run := func(step string, do func(i int) error) {
			b.Run(name+"/"+step, func(b *testing.B) {
				for i := range n { // grows the scratch memory
					if err := do(i); err != nil {
						b.Fatal(err)
					}
				}
				before, pairs := cpuTime(b), 0
				for i := 0; b.Loop(); i++ {
					if err := do(i % n); err != nil {
						b.Fatal(err)
					}
					pairs += 4096
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(pairs), "cpu-ns/pair")
			})
		}
		run("range", func(i int) error { p.numbers.Check(batches[i].grads); return nil })
		run("find", func(i int) error {
			p.scratch.found = grown(p.scratch.found, 4096)
			p.hotSet.index.findAll(p.scratch.found[:4096], batches[i].keys)
			return nil
		})
		run("begin", func(i int) error { return p.Begin(batches[i].keys, batches[i].grads) })
		run("push", func(i int) error {
			_, err := frames.fill(p, batches[i])
			return err
		})
		prepared := make([]*Prepared, n)
		for i, t := range batches {
			if prepared[i], err = p.Prepare(t.keys); err != nil {
				b.Fatal(err)
			}
		}
		run("prepared", func(i int) error {
			err := p.BeginPrepared(batches[i].grads, prepared[i])
			for err == nil && p.Next() != 0 {
				frames.next++
				_, err = p.Fill(frames.frames[frames.next%len(frames.frames)][wire.EnvelopeLen:])
			}
			return err
		})
	}
}

// BenchmarkCold measures the cost of a gradient in cold frames, as floats and in codes.
func BenchmarkCold(b *testing.B) {
	for _, dim := range []int{1, 9, 16} {
		for _, bound := range []int{0, 10} {
			b.Run(fmt.Sprintf("dim=%d/bound=%d", dim, bound), func(b *testing.B) {
				p, err := New(Config{Dim: dim, Codec: codec.Config{Bound: bound}})
				if err != nil {
					b.Fatal(err)
				}
				batches := benchBatches(16, 4096/dim, dim, true)
				for _, t := range batches {
					for i := range t.grads {
						t.grads[i] /= 64 // up to 2^-7
					}
				}
				frames := &ring{}
				before, floats := cpuTime(b), 0
				for i := 0; b.Loop(); i++ {
					if _, err = frames.fill(p, batches[i%len(batches)]); err != nil {
						b.Fatal(err)
					}
					floats += 4096 / dim * dim
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(floats), "cpu-ns/float")
				b.ReportMetric(float64(p.Sent().ColdFrames), "frames")
			})
		}
	}
}
