// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/wire"
)

// A worker whose frames are refused as those of an ended admission waits for the reason, which
// comes on another connection, for the grace at most. Other failures are their own reason at once.
func TestVerdict(t *testing.T) {
	const later = 2 * time.Second
	for code, waits := range map[wire.Code]bool{
		wire.CodeUnknownSender: true, wire.CodeWrongEpoch: true, wire.CodeUnknownJob: false, wire.CodeOverflow: false,
	} {
		for _, told := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if told {
					defer time.AfterFunc(later, func() { cancel(control.ErrRewound) }).Stop()
				}
				err := fmt.Errorf("push: %w", wire.Refusal{Code: code})
				begin := time.Now()
				why := verdict(ctx, err, false)
				took, want := time.Since(begin), time.Duration(0)
				switch {
				case waits && told:
					want, err = later, control.ErrRewound
				case waits:
					want = control.DefaultGrace
				}
				if !errors.Is(why, err) || took != want {
					t.Errorf("code %v, told %v: %v after %v, want %v after %v", code, told, why, took, err, want)
				}
			})
		}
	}
}

// The end of a generation takes back what is in no harvest that was applied, and reports of it do
// not count; those of workers who have settled, and of the next generation, do.
func TestReportsOfAnEndedGeneration(t *testing.T) {
	p := newProgress(false, 0)
	report := func(worker uint16, steps, instance uint64, want error) {
		t.Helper()
		if err := p.addReport(worker, steps, instance); !errors.Is(err, want) {
			t.Errorf("%d steps of worker %d at instance %d: %v, want %v", steps, worker, instance, err, want)
		}
	}
	is := func(when string, three, four, settledThree uint64) {
		t.Helper()
		if p.firstStep(3) != three || p.firstStep(4) != four || p.settled[3] != settledThree {
			t.Errorf("%s: workers begin with steps %d and %d, and %d are settled; want %d, %d, %d", when, p.firstStep(3), p.firstStep(4),
				p.settled[3], three, four, settledThree)
		}
	}
	report(3, 10, 7, nil)
	p.settleReports()
	report(3, 20, 7, nil)
	report(4, 5, 7, nil)
	p.settleReports()
	report(3, 30, 7, nil)
	is("before", 30, 5, 10)
	p.endGeneration(7)
	is("at the end", 10, 0, 10)
	report(3, 40, 7, control.ErrFenced)
	if err := errors.Join(p.checkGeneration(0), p.checkGeneration(8)); err != nil || !errors.Is(p.checkGeneration(7), control.ErrFenced) {
		t.Errorf("%v, and the ended one: %v", err, p.checkGeneration(7))
	}
	is("after a late report", 10, 0, 10)
	p.settleReports()
	is("after a harvest without reports", 10, 0, 10)
	report(4, 6, 0, nil)
	report(3, 31, 8, nil)
	p.settleReports()
	p.settleReports()
	is("in the next one", 31, 6, 31)
}
