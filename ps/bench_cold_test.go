// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ps

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/wire"
)

// BenchmarkCold adds frames of cold pairs, as full as the MTU allows, to stores of several sizes;
// the keys are random ones of the store's. 1,024 frames are followed by a commit: about the number
// that a server gets between two harvests. Then the same number of rows is read, as pulls read
// them. It reports medians of these costs, in nanoseconds of CPU per row: of 32 frames, of a
// commit, and of the rows of 32 frames.
func BenchmarkCold(b *testing.B) {
	for _, m := range []struct {
		method Method
		dim    int
	}{{SGD, 1}, {Adagrad, 1}, {Adagrad, 9}} {
		for _, keys := range []int{1e4, 1e6, 1e7} {
			if keys*m.dim > 1e7 {
				continue
			}
			b.Run(fmt.Sprintf("%v/dim%d/%d", m.method, m.dim, keys), func(b *testing.B) {
				s := newStore(b, Config{Dim: m.dim, Exp: DefaultExp, Capacity: keys, Optimizer: Optimizer{Method: m.method}})
				fill := make([]uint64, 1000)
				for key := 0; key < keys; key += len(fill) {
					for i := range fill {
						fill[i] = mix(uint64(key + i))
					}
					if err := s.Push(fill, make([]float32, m.dim*len(fill))); err != nil {
						b.Fatal(err)
					}
					s.Commit()
				}
				benchmarkCold(b, s, keys)
			})
		}
	}
}

func benchmarkCold(b *testing.B, s *Store, keys int) {
	rng := rand.New(rand.NewPCG(5, 6))
	dim := s.Config().Dim
	n := wire.ColdCap(wire.DefaultPayload, dim)
	grads := gradients(n * dim)
	frames := make([]wire.Rows, 1024)
	for i := range frames {
		frames[i] = cold(make([]uint64, n), grads)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var accumulate, at, commit, read []float64
	pulled, numbers, rows := make([]uint64, n), make([]uint32, n), make([]float32, n*dim)
	for range b.N {
		for _, f := range frames {
			for i := range n {
				f.SetKey(i, mix(rng.Uint64N(uint64(keys))))
			}
		}
		for few := range slices.Chunk(frames, 32) {
			start := cpuTime(b)
			for _, f := range few {
				if err := s.Accumulate(f); err != nil {
					b.Fatal(err)
				}
			}
			accumulate = append(accumulate, float64(cpuTime(b)-start)/float64(n*len(few)))
		}
		numbered := make([]wire.Rows, len(frames))
		for k, f := range frames {
			for i := range pulled {
				pulled[i] = f.Key(i)
			}
			numbering := s.Find(pulled, numbers)
			payload := make([]byte, wire.ColdAtLen(n, dim))
			numbered[k] = wire.PutNumbered(payload, wire.TypeColdAt, n, dim, numbering)
			numbered[k].SetNumbers(numbers)
			for i := range numbers {
				numbered[k].SetRow(i, grads[i*dim:])
			}
		}
		for few := range slices.Chunk(numbered, 32) {
			start := cpuTime(b)
			for _, f := range few {
				if err := s.AccumulateAt(f); err != nil {
					b.Fatal(err)
				}
			}
			at = append(at, float64(cpuTime(b)-start)/float64(n*len(few)))
		}
		start := cpuTime(b)
		committed := s.Commit()
		commit = append(commit, float64(cpuTime(b)-start)/float64(committed))
		for few := range slices.Chunk(frames, 32) {
			start := cpuTime(b)
			for _, f := range few {
				for i := range pulled {
					pulled[i] = f.Key(i)
				}
				s.Read(pulled, rows)
			}
			read = append(read, float64(cpuTime(b)-start)/float64(n*len(few)))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(accumulate), "accumulate-ns/row")
	b.ReportMetric(median(at), "accumulate-at-ns/row")
	b.ReportMetric(median(commit), "commit-ns/row")
	b.ReportMetric(median(read), "read-ns/row")
}

// cpuTime returns this thread's CPU time in nanoseconds.
func cpuTime(b *testing.B) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
