// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/aggregator"
)

// The daemon never holds a job's lock, so that it may be killed at any time: at no moment of a swap
// does the word have the bit that programs set.
func TestDaemonNeverHoldsTheLock(t *testing.T) {
	table := jobTable{jobs: new([aggregator.MaxJobs]aggregateJob)}
	word := &table.jobs[3].Lock
	var (
		watching sync.WaitGroup
		over     atomic.Bool
		held     atomic.Uint32
		banks    [2]atomic.Uint32
	)
	watching.Go(func() {
		for !over.Load() {
			w := atomic.LoadUint32(word)
			banks[w/oneSwap&1].Add(1)
			held.Add(w & locked)
		}
	})
	// Until the watcher has seen both banks, and often enough.
	for n := 0; n < 100_000 || banks[0].Load() == 0 || banks[1].Load() == 0; n++ {
		table.turnBanks(3)
		if w := atomic.LoadUint32(word); w != uint32(n+1)*oneSwap {
			t.Fatalf("swap %d: the word is %d while it waits", n, w)
		}
		if err := table.awaitFree(3, 0); err != nil {
			t.Fatal(err)
		}
	}
	over.Store(true)
	watching.Wait()
	if n := held.Load(); n != 0 {
		t.Errorf("the lock was held %d times", n)
	}
}

// A swap leaves the lock to the program that holds it, also when it times out.
func TestSwapLeavesTheLock(t *testing.T) {
	table := jobTable{jobs: new([aggregator.MaxJobs]aggregateJob)}
	word := &table.jobs[3].Lock
	for _, swaps := range []uint32{0, oneSwap, math.MaxUint32 - 1} { // the last one wraps around
		atomic.StoreUint32(word, swaps|locked)
		table.turnBanks(3)
		if err := table.awaitFree(3, 0); !errors.Is(err, aggregator.ErrBusy) {
			t.Errorf("error %v, want that the data plane is busy", err)
		}
		if w := atomic.LoadUint32(word); w != swaps+oneSwap|locked {
			t.Errorf("the word is %d, and was %d", w, swaps|locked)
		}
	}
}
