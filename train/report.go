// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"time"
)

// reporter makes a worker's calls of Config.Report, one at a time, concurrently with the training.
type reporter struct {
	cfg      *Config
	interval uint64     // the most steps between two reports
	at       time.Time  // time of the last report
	last     uint64     // its steps
	pending  chan error // of a running report, else nil
}

// interval returns the largest number of steps between two reports. A report ends before the next
// begins, so the weights may lack the steps of two reports, except the last of these unless rows
// are pulled a step early.
func interval(staleness int, early bool) uint64 {
	if early {
		return uint64(staleness / 2)
	}
	return uint64((staleness-1)/2 + 1)
}

// due reports whether it is time for a report after a number of steps.
func (r *reporter) due(steps uint64) bool {
	if r.cfg.Sync || r.cfg.Report == nil {
		return false
	}
	return steps-r.last >= r.interval || time.Since(r.at) >= r.cfg.ReportEvery
}

// begin starts a report; none must be running.
func (r *reporter) begin(ctx context.Context, reached Reached) {
	if r.cfg.Report == nil {
		return
	}
	r.at, r.last = time.Now(), reached.Steps
	pending := make(chan error, 1)
	r.pending = pending
	go func() { pending <- r.cfg.Report(ctx, reached) }()
}

// wait returns when no report is running, with the error of the last one.
func (r *reporter) wait() (err error) {
	if r.pending != nil {
		err = <-r.pending
		r.pending = nil
	}
	return err
}
