// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/link"
)

// BenchmarkLoss pushes batches of 4,000 rows, several at a time, over a network that
// loses, duplicates and reorders frames, and over one that does not.
func BenchmarkLoss(b *testing.B) {
	for _, c := range []struct {
		name   string
		faults link.Faults
	}{
		{"none", link.Faults{}},
		{"loss=1%", link.Faults{Drop: 0.01}},
		{"loss=1%,dup=1%,reorder=1%", link.Faults{Drop: 0.01, Duplicate: 0.01, Reorder: 0.01}},
	} {
		for _, f := range []struct {
			name string
			make func(testing.TB, clusterOptions) fabric
		}{{"udp", udpFabric}, {"memory", memFabric}} {
			b.Run(f.name+"/"+c.name, func(b *testing.B) {
				ctx := b.Context()
				o := clusterOptions{workers: 1, faults: c.faults}
				cl := newCluster(b, f.make(b, o), o)
				keys, grads := batch(rand.New(rand.NewPCG(1, 1)), 4000)
				var tickets [4]*Ticket
				for i := 0; b.Loop(); i++ {
					at := &tickets[i%len(tickets)]
					if *at != nil {
						if err := (*at).Wait(ctx); err != nil {
							b.Fatal(err)
						}
					}
					var err error
					if *at, err = cl.workers[0].Push(ctx, keys, grads); err != nil {
						b.Fatal(err)
					}
				}
				s, err := cl.workers[0].Stats(ctx)
				if err != nil {
					b.Fatal(err)
				}
				frames := float64(s.Hot.Sent + s.Cold.Sent)
				b.ReportMetric(frames/b.Elapsed().Seconds(), "frames/s")
				b.ReportMetric(100*float64(s.Hot.Retransmitted+s.Cold.Retransmitted)/frames, "%repeated")
			})
		}
	}
}
