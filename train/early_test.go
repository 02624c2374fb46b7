// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/train/data"
)

// early is a recorder whose pulls run concurrently with other calls. Mini-batches have one sample,
// whose number is a key.
type early struct {
	recorder
	settled atomic.Int64 // mini-batches known to be in the weights
	begun   int          // mini-batches whose rows were requested
	lacks   int          // the most mini-batches that weights may have lacked
	events  []string
	fails   string // the event that is an error
}

func (e *early) event(what string, keys []uint64) error {
	event := fmt.Sprint(what, " ", keys[0])
	e.events = append(e.events, event)
	if event == e.fails {
		return errFailing
	}
	return nil
}

func (e *early) ask() {
	e.lacks = max(e.lacks, e.begun-int(e.settled.Load()))
	e.begun++
}

func (e *early) Pull(ctx context.Context, keys []uint64, dst []float32) error {
	e.ask()
	return errors.Join(e.event("pull", keys), e.Local.Pull(ctx, keys, dst))
}

func (e *early) Push(ctx context.Context, keys []uint64, grads []float32) error {
	return errors.Join(e.event("push", keys), e.recorder.Push(ctx, keys, grads))
}

func (e *early) BeginPull(_ context.Context, keys []uint64, dst []float32) (Pulling, error) {
	e.ask()
	return earlyPull{e, keys, dst}, e.event("begin", keys)
}

type earlyPull struct {
	e    *early
	keys []uint64
	dst  []float32
}

func (p earlyPull) Wait(ctx context.Context) error {
	return errors.Join(p.e.event("wait", p.keys), p.e.Local.Pull(ctx, p.keys, p.dst))
}

// The rows of a mini-batch are requested before the gradients of the previous one are pushed, one
// mini-batch ahead and within an epoch; not in synchronous training, nor if the weights may lack no
// mini-batch.
func TestRowsArePulledEarly(t *testing.T) {
	train := func(cfg Config, fails string) ([]string, error) {
		e := &early{recorder: recorder{Local: Local{newStore(t, Linear{}, 0)}}, fails: fails}
		cfg.Model, cfg.Batch, cfg.Window = Linear{}, 1, 2
		_, err := Train(t.Context(), barriers{e}, numbered(3, data.Shard{Index: 0, Count: 1}), cfg)
		return e.events, err
	}
	var keys []string // in the order of training
	late, err := train(Config{Epochs: 2, Staleness: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, event := range late {
		if i%2 == 0 {
			keys = append(keys, event[len("pull "):])
		}
		if want := []string{"pull ", "push "}[i%2] + keys[i/2]; event != want {
			t.Fatalf("staleness 1: %v, want %s at %d", late, want, i)
		}
	}
	for name, cfg := range map[string]Config{"2": {Staleness: 2}, "any": {}} {
		var want []string
		for k := range slices.Chunk(keys, 3) {
			want = append(want, "pull "+k[0], "begin "+k[1], "push "+k[0], "wait "+k[1], "begin "+k[2], "push "+k[1], "wait "+k[2], "push "+k[2])
		}
		cfg.Epochs = 2
		got, err := train(cfg, "")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("staleness %s: %v, -want +got %s", name, err, diff)
		}
		for i, event := range want {
			if got, err := train(cfg, event); !errors.Is(err, errFailing) || !slices.Contains(want[:i+1], event) || len(got) > i+1 {
				t.Errorf("%s fails: %v, after %v", event, err, got)
			}
		}
	}
	if got, err := train(Config{Epochs: 2, Sync: true}, ""); err != nil || !slices.Equal(got, late) {
		t.Errorf("synchronous: %v, %v", got, err)
	}
}

// barriers is a client of synchronous training with one worker.
type barriers struct{ *early }

func (barriers) Barrier(context.Context, uint64) error { return nil }

// However late reports are answered, weights lack at most Staleness of their worker's mini-batches
// when they are requested early, and as many as reports in pairs allow.
func TestStalenessIsBoundedEarly(t *testing.T) {
	for staleness := 1; staleness <= 9; staleness++ {
		synctest.Test(t, func(t *testing.T) {
			e := &early{recorder: recorder{Local: Local{newStore(t, Linear{}, 0)}}}
			asked, answer := make(chan uint64), make(chan error)
			cfg := Config{
				Model: Linear{}, Epochs: 2, Batch: 1, Staleness: staleness, ReportEvery: math.MaxInt64,
				Report: func(_ context.Context, at Reached) error { asked <- at.Steps; return <-answer },
			}
			done := make(chan error, 1)
			go func() {
				_, err := Train(t.Context(), e, numbered(40, data.Shard{Index: 0, Count: 1}), cfg)
				done <- err
			}()
			for {
				select {
				case steps := <-asked:
					synctest.Wait() // it trains until it has to wait
					e.settled.Store(int64(steps))
					answer <- nil
					continue
				case err := <-done:
					if err != nil || e.begun != 80 {
						t.Errorf("%d mini-batches, %v", e.begun, err)
					}
				}
				break
			}
			if want := max(1, staleness/2*2); e.lacks != want {
				t.Errorf("staleness %d: at most %d are missing, want %d", staleness, e.lacks, want)
			}
		})
	}
}
