// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
)

// TestExactSumsOnAnyNetwork is TestExactSums for random faults, frames and
// windows, while banks are swapped under the pushes.
func TestExactSumsOnAnyNetwork(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.Float64Range(0, 0.2)
		o := clusterOptions{
			workers: rapid.IntRange(1, 3).Draw(rt, "workers"),
			layout:  rapid.SampledFrom([]packer.Layout{packer.LaneAligned, packer.Dense}).Draw(rt, "layout"),
			stripes: rapid.IntRange(1, 10).Draw(rt, "stripes"),
			flow: retransmit.Config{
				Size:   1 << rapid.IntRange(0, 9).Draw(rt, "log window"),
				MaxRTO: 20 * time.Millisecond, // the test is not about patience
			},
			faults: link.Faults{
				Drop: p.Draw(rt, "drop"), Duplicate: p.Draw(rt, "duplicate"), Reorder: p.Draw(rt, "reorder"), Late: p.Draw(rt, "late"),
				Delay: rapid.IntRange(1, 40).Draw(rt, "delay"), LateDelay: rapid.IntRange(1, 400).Draw(rt, "late delay"),
				Seed: rapid.Uint64().Draw(rt, "seed"),
			},
		}
		// A window of few frames is slow on a bad network.
		batches := min(6, 1+o.flow.Size/4)
		s := &scope{TB: t}
		defer s.close()
		c := newCluster(s, memFabric(s, o), o)

		var mu sync.Mutex
		harvested := newLedger()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(500 * time.Microsecond):
				}
				bank, err := c.plane.Swap(testJob)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for rank, units := range bank.Slots {
					if units != 0 {
						harvested.add(c.hot.Key(uint32(rank/testDim)), rank%testDim, units)
					}
				}
				mu.Unlock()
				if err := c.plane.Clear(bank); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		want := pushAll(deadline(s), t, c.workers, rapid.Uint64().Draw(rt, "batches"), batches, 60)
		close(stop)
		<-stopped
		for key, row := range c.sums() {
			for col, units := range row {
				harvested.add(key, col, units)
			}
		}
		if diff := cmp.Diff(want, withoutZeros(harvested.sums)); diff != "" {
			rt.Fatalf("sums (-pushed +held):\n%.1000s", diff)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// scope is a test whose cleanup runs at the end of one run of a property.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(fn func()) { s.cleanups = append(s.cleanups, fn) }

func (s *scope) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}
