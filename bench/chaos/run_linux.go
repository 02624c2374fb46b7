// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// tellEvery is the time between two calls of Config.Progress.
const tellEvery = time.Second

// Run lives one life after the other, until one is not as it should be. It needs the privileges to
// make network namespaces. The report is of all lives, the last of which may have failed: then
// Report.Failure says so, and the error names its seed, and wraps [ErrDiffers] if its weights
// differ. Any other error is why lives could not be lived, or the cause of ctx's end. It leaves
// nothing behind.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	begun := time.Now()
	report := &Report{Seed: cfg.Seed}
	var at atomic.Pointer[running]
	var lived atomic.Int64
	stop := cfg.showProgress(func(p *Now) {
		if r := at.Load(); r != nil {
			*p = r.now()
		}
		p.Lives, p.Elapsed = int(lived.Load()), time.Since(begun)
	})
	defer stop()
	trace := cfg.Trace
	if trace == nil {
		trace = func(string) {}
	}
	var one sync.Mutex
	locked := func(line string) {
		one.Lock()
		defer one.Unlock()
		trace(line)
	}
	for i := 0; i < cfg.Lives && (i == 0 || time.Since(begun) < cfg.Duration); i++ {
		l := Plan(cfg.Seed+uint64(i), cfg.Steps, cfg.Kinds)
		locked(fmt.Sprintf("seed %d: %d workers, %d epochs of %d rows, batches of %d, %d troubles", l.Seed, l.Workers, l.Epochs,
			l.Rows, l.Batch, len(l.Troubles)))
		one, err := live(ctx, l, locked, at.Store)
		report.Elapsed = time.Since(begun)
		switch {
		case ctx.Err() != nil:
			return report, context.Cause(ctx)
		case one == nil:
			return report, err
		}
		report.Lives = append(report.Lives, *one)
		if err != nil {
			report.Failure = err.Error()
			return report, fmt.Errorf("seed %d: %w", l.Seed, err)
		}
		lived.Add(1)
	}
	return report, nil
}

// showProgress calls Config.Progress until stop is called.
func (c *Config) showProgress(fill func(*Now)) (stop func()) {
	if c.Progress == nil {
		return func() {}
	}
	ended := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(tellEvery); ; {
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
				var now Now
				fill(&now)
				now.Steps = uint64(c.Steps)
				c.Progress(now)
			}
		}
	})
	return func() { close(ended); done.Wait() }
}
