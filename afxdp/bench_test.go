// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"fmt"
	"testing"
)

// The benchmarks measure the cost per frame of the program's side of the rings. The kernel's side
// only moves positions: its entries are written before, in the order of the frames, so that it
// costs nothing.

var batchSizes = []int{1, 16, 64}

func BenchmarkTransmit(b *testing.B) {
	for _, batch := range batchSizes {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			const ring = 2048
			s, k := newSim(b, simConfig{frames: ring, ring: ring})
			descs, done := make([]Desc, ring), make([]Frame, batch)
			for i := range descs {
				f, _ := s.pool.Alloc()
				descs[i] = Desc{Frame: f, Off: kernelHeadroom, Len: 190}
				k.completion.addrs[i] = uint64(f) << s.umem.shift
			}
			next := 0
			b.ReportAllocs()
			for b.Loop() {
				if n, err := s.Send(descs[next : next+batch]); n != batch || err != nil {
					b.Fatal(n, err)
				}
				next = (next + batch) % ring
				k.tx.releaseEntries(uint32(batch))
				k.completion.submitEntries(uint32(batch))
				if n, err := s.Completed(done); n != batch || err != nil {
					b.Fatal(n, err)
				}
			}
			perFrame(b, batch)
		})
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, batch := range batchSizes {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			const ring = 2048
			s, k := newSim(b, simConfig{frames: ring, ring: ring})
			descs := make([]Desc, batch)
			if n, err := s.Refill(ring); n != ring || err != nil {
				b.Fatal(n, err)
			}
			for i := range k.rx.descs {
				k.rx.descs[i] = xdpDesc{Addr: s.fill.addrs[i] + kernelHeadroom, Len: 190}
			}
			b.ReportAllocs()
			for b.Loop() {
				k.rx.submitEntries(uint32(batch))
				k.fill.releaseEntries(uint32(batch))
				if n, err := s.Receive(descs); n != batch || err != nil {
					b.Fatal(n, err)
				}
				if err := s.Release(descs); err != nil {
					b.Fatal(err)
				}
			}
			perFrame(b, batch)
		})
	}
}

// BenchmarkForward receives, sends the same frames, and fills them again.
func BenchmarkForward(b *testing.B) {
	const ring, batch = 2048, 64
	s, k := newSim(b, simConfig{frames: ring, ring: ring})
	descs, done := make([]Desc, batch), make([]Frame, batch)
	if n, err := s.Refill(ring); n != ring || err != nil {
		b.Fatal(n, err)
	}
	for i, addr := range s.fill.addrs {
		k.rx.descs[i] = xdpDesc{Addr: addr + kernelHeadroom, Len: 190}
		k.completion.addrs[i] = addr
	}
	b.ReportAllocs()
	for b.Loop() {
		k.rx.submitEntries(batch)
		k.fill.releaseEntries(batch)
		if n, err := s.Receive(descs); n != batch || err != nil {
			b.Fatal(n, err)
		}
		if n, err := s.Send(descs); n != batch || err != nil {
			b.Fatal(n, err)
		}
		k.tx.releaseEntries(batch)
		k.completion.submitEntries(batch)
		if n, err := s.Completed(done); n != batch || err != nil {
			b.Fatal(n, err)
		}
		if n, err := s.Fill(done); n != batch || err != nil {
			b.Fatal(n, err)
		}
	}
	perFrame(b, batch)
}

func perFrame(b *testing.B, batch int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/frame")
}
