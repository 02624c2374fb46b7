// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Campaign is many lives.
type Campaign struct {
	First, Last uint64 // seeds, both included
	Lives       []Life // of each seed
	Kinds       Kinds
	Parallel    int // concurrent lives
	// Pages leaves out the lives of workers whose hot sets have one page.
	Pages bool
	// Progress, if set, is called after each life.
	Progress func(*Report)
}

// Report is the summary of many lives.
type Report struct {
	First      uint64         `json:"first"` // first seed
	Seeds      uint64         `json:"seeds"` // completed seeds: all seeds below the first that was not lived
	Kinds      string         `json:"kinds"`
	Elapsed    time.Duration  `json:"elapsed_ns"`
	Workers    Result         `json:"workers"`
	Clusters   ClusterResult  `json:"clusters"`
	Agents     AgentsResult   `json:"agents"`
	Reducers   ReducersResult `json:"reducers"`
	Rings      RingsResult    `json:"rings"`
	Violations []*Violation   `json:"violations"`
}

// Run runs lives until the last seed, the end of ctx, or a violation; lives that have begun run to
// their ends.
func (c Campaign) Run(ctx context.Context, in Bubble) (*Report, error) {
	total := &Report{First: c.First, Kinds: c.Kinds.String(), Violations: []*Violation{}}
	var (
		begin  = time.Now()
		mu     sync.Mutex
		next   = c.First
		ended  bool
		failed error
		all    sync.WaitGroup
	)
	draw := func() (seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if ended || ctx.Err() != nil || next > c.Last {
			return 0, false
		}
		next++
		total.Seeds++
		return next - 1, true
	}
	for range max(c.Parallel, 1) {
		all.Go(func() {
			for {
				seed, ok := draw()
				if !ok {
					return
				}
				for _, life := range c.Lives {
					if c.Pages && life == Workers && (Options{Seed: seed}).drawPages() == 1 {
						continue
					}
					var one Report
					v, err := life.live(in, Options{Seed: seed, Kinds: c.Kinds}, &one)
					mu.Lock()
					total.Workers.Add(one.Workers)
					total.Clusters.Add(one.Clusters)
					total.Agents.Add(one.Agents)
					total.Reducers.Add(one.Reducers)
					total.Rings.Add(one.Rings)
					total.Elapsed = time.Since(begin)
					if v != nil {
						total.Violations = append(total.Violations, v)
					}
					failed = errors.Join(failed, err)
					ended = ended || v != nil || err != nil
					if c.Progress != nil {
						c.Progress(total)
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return total, failed
}
