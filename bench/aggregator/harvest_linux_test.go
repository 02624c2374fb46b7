// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/ps"
)

// BenchmarkHarvest takes harvests of 65,536 slots, of which all, or a quarter, hold a sum; of
// 30,000; and of 2^22 of which 10,000 do, from the switch daemon over a loopback connection into a
// server's store, and commits them. It reports nanoseconds of CPU a sum, and microseconds a
// harvest.
func BenchmarkHarvest(b *testing.B) {
	for _, c := range []struct{ slots, part int }{{aggregator.PageSlots, 1}, {aggregator.PageSlots, 4}, {30_000, 1}, {1 << 22, 420}} {
		b.Run(fmt.Sprintf("%d slots, one in %d", c.slots, c.part), func(b *testing.B) { benchmarkHarvest(b, c.slots, c.part) })
	}
}

func benchmarkHarvest(b *testing.B, slots, part int) {
	store, err := ps.New(ps.Config{Dim: 1, Exp: fixedpoint.DefaultExp})
	if err != nil {
		b.Fatal(err)
	}
	h, err := newHarvests(b.Context(), slots, store)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	sums := 0
	for i := range slots {
		if rng.IntN(part) == 0 {
			h.plane.put(i, rng)
			sums++
		}
	}
	if err := h.harvester.Now(b.Context()); err != nil { // the store looks the hot rows up
		b.Fatal(err)
	}
	before, err := sys.OwnUsage()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := h.harvester.Now(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	after, err := sys.OwnUsage()
	if err != nil {
		b.Fatal(err)
	}
	took := float64(after.User+after.Kernel-before.User-before.Kernel) / float64(b.N)
	b.ReportMetric(took/float64(sums), "cpu-ns/sum")
	b.ReportMetric(took/1e3, "cpu-us/harvest")
}
