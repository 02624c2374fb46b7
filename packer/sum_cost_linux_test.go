// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// BenchmarkSum packs prepared batches of 4,096 pairs, 1 to 64 at a time: separately, and added up.
// Both alternate, with a metric for each: ns per gradient of the batches, and gradients per frame.
func BenchmarkSum(b *testing.B) {
	hot := benchHotSet(b, 1)
	batches := benchBatches(64, 4096, 1, true)
	for _, n := range []int{2, 4, 8, 16, 64} {
		for _, added := range []bool{false, true} {
			b.Run(fmt.Sprintf("batches=%d/added=%v", n, added), func(b *testing.B) {
				p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: wire.DefaultStripes})
				if err != nil {
					b.Fatal(err)
				}
				parts := make([]Part, len(batches))
				for i, t := range batches {
					if parts[i] = (Part{Grads: t.grads}); true {
						parts[i].Prepared, err = p.Prepare(t.keys)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				frames := &ring{}
				pairs, sent, pushes := 0, 0, 0
				send := func(err error) {
					for err == nil && p.Next() != 0 {
						frames.next++
						_, err = p.Fill(frames.frames[frames.next%len(frames.frames)][wire.EnvelopeLen:])
						sent++
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				round := func(i int) {
					some := parts[i*n%len(parts):][:n]
					if added {
						_, err := p.BeginSum(-46, some)
						send(err)
					} else {
						for _, part := range some {
							send(p.BeginPrepared(part.Grads, part.Prepared))
						}
					}
					pairs += 4096 * n
					pushes += n
				}
				round(0)
				pairs, sent = 0, 0
				before := cpuTime(b)
				for i := 0; b.Loop(); i++ {
					round(i)
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(pairs), "cpu-ns/pair")
				b.ReportMetric(float64(pairs)/float64(sent), "pairs/frame")
			})
		}
	}
}
