// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/train/data"
)

// However late reports are answered, a mini-batch lacks at most Staleness of its worker's, and no
// report begins before the previous one is answered.
func TestStalenessIsBounded(t *testing.T) {
	for staleness := 1; staleness <= 9; staleness++ {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
			asked, answer := make(chan uint64), make(chan error)
			cfg := Config{
				Model: Linear{}, Epochs: 2, Batch: 1, Staleness: staleness, ReportEvery: math.MaxInt64,
				Report: func(_ context.Context, at Reached) error { asked <- at.Steps; return <-answer },
			}
			done := make(chan error, 1)
			go func() {
				_, err := Train(t.Context(), r, numbered(20, data.Shard{Index: 0, Count: 1}), cfg)
				done <- err
			}()
			settled, most := 0, 0
			for training := true; training; {
				var steps uint64
				select {
				case steps = <-asked:
				case err := <-done:
					if err != nil || len(r.pushed) != 40 {
						t.Errorf("%d mini-batches, %v", len(r.pushed), err)
					}
					training = false
					continue
				}
				synctest.Wait() // it trains until it has to wait
				if lacks := len(r.pushed) - 1 - settled; lacks > staleness {
					t.Fatalf("staleness %d: mini-batch %d lacks %d", staleness, len(r.pushed), lacks)
				} else {
					most = max(most, lacks)
				}
				answer <- nil
				settled = int(steps)
			}
			if want := staleness - 1 + staleness%2; most != want {
				t.Errorf("staleness %d: at most %d are missing, want %d: it waits needlessly", staleness, most, want)
			}
		})
	}
}

// An error of a report ends the training at the next one, and a training does not end before its
// reports.
func TestReportsEndWithTraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // synctest fails if a goroutine stays
		cfg := Config{Model: Linear{}, Epochs: 1, Batch: 1, Staleness: 4, ReportEvery: math.MaxInt64}
		cfg.Report = func(context.Context, Reached) error { return errStop }
		r := &recorder{Local: Local{newStore(t, Linear{}, 0)}}
		if _, err := Train(t.Context(), r, numbered(20, data.Shard{Index: 0, Count: 1}), cfg); !errors.Is(err, errStop) || len(r.pushed) != 4 {
			t.Errorf("%d mini-batches, %v", len(r.pushed), err)
		}
		ended := false
		cfg.Report = func(ctx context.Context, _ Reached) error {
			<-ctx.Done()
			time.Sleep(time.Second) // for example until the server has answered
			ended = true
			return ctx.Err()
		}
		if _, err := Train(t.Context(), &failing{calls: 7}, numbered(20, data.Shard{Index: 0, Count: 1}), cfg); !errors.Is(err, errFailing) || !ended {
			t.Errorf("a call fails: %v; the running report has ended: %v", err, ended)
		}
	})
	if _, err := Train(t.Context(), &deaf{}, numbered(20, data.Shard{Index: 0, Count: 1}), Config{Model: Linear{}, Staleness: -1}); err == nil {
		t.Error("negative staleness is taken")
	}
}
