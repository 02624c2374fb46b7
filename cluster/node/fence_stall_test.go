// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

var deaths = flag.Int("deaths", 3, "deaths of aggregators whose stalls TestFenceStalls measures")

// The stall of a death is the time from the fence until a worker's pushes are acknowledged again,
// the longest of two workers. docs/failures.md names the command:
//
//	go test ./cluster/node -run TestFenceStalls -v -deaths 30
func TestFenceStalls(t *testing.T) {
	c := newCluster(t, 2)
	addStandbys(t, c, 1)
	c.Model.Epochs = 1_000_000 // until it is stopped
	ctx, end := context.WithCancel(t.Context())
	defer end()

	var mu sync.Mutex
	var fenced time.Time // the last one, until both have gone on
	var stalls []time.Duration
	waiting := map[uint16]bool{}
	const fence, stalled, again = "fence", "stalled", "again"
	happens := make(chan string, 100)
	flushed := func(worker uint16) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			if !waiting[worker] {
				return
			}
			if delete(waiting, worker); len(waiting) == 0 {
				stalls = append(stalls, time.Since(fenced))
				happens <- stalled
			}
		}
	}
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() {
		_, errs[0] = RunServer(ctx, Env{Config: c, Log: testLog(t).With("process", "ps"), Machine: Machine{
			Fenced: func() {
				mu.Lock()
				defer mu.Unlock()
				fenced = time.Now()
				for _, w := range c.Workers {
					waiting[w.ID] = true
				}
				happens <- fence
			},
			Began: func(int) { happens <- again },
		}})
	})
	stop := make([]func(), 2)
	for at := range stop {
		_, stop[at] = runAggregator(t, c, at)
	}
	for i, w := range c.Workers {
		all.Go(func() {
			_, errs[1+i] = RunWorker(ctx, Env{Config: c, Log: testLog(t).With("process", fmt.Sprint("worker ", w.ID)),
				Machine: Machine{Flushed: flushed(w.ID)}}, WorkerOptions{ID: w.ID})
		})
	}
	limit := time.After(eventLimit)
	await := func(all ...string) {
		t.Helper()
		for len(all) > 0 {
			select {
			case what := <-happens:
				all = slices.DeleteFunc(all, func(one string) bool { return one == what })
			case <-limit:
				t.Fatalf("nothing of %v happens", all)
			}
		}
	}
	for n := range *deaths {
		at := n % 2
		awaitSenders(t, c.Aggregators()[at], 2)
		stop[at]()
		await(fence, stalled, again)
		_, stop[at] = runAggregator(t, c, at)
	}
	end()
	all.Wait()
	for _, stop := range stop {
		stop()
	}
	for _, err := range errs {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if len(stalls) != *deaths {
		t.Fatalf("%d stalls of %d deaths", len(stalls), *deaths)
	}
	slices.Sort(stalls)
	t.Logf("from the fence to acknowledged pushes of both workers, %d deaths: median %v, longest %v", len(stalls),
		stalls[len(stalls)/2], stalls[len(stalls)-1])
}
