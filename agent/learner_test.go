// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
)

// A learner accepts pushes while few keys wait, and at least one push; it skips others until it has
// counted.
func TestLearnerLeavesOutWhatIsTooMuch(t *testing.T) {
	for name, c := range map[string]struct {
		length int // of each push
		fit    uint64
	}{
		"empty": {0, 64}, "small": {1, 64}, "half": {learnQueue / 2, 2}, "just too long": {learnQueue/2 + 1, 1}, "long": {learnQueue + 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counter, err := heat.NewSpaceSaving(10)
				if err != nil {
					t.Fatal(err)
				}
				l := &learner{queue: make(chan []uint64, 64), counter: counter, done: make(chan struct{})}
				keys := make([]uint64, c.length)
				fill := func() {
					for range 100 {
						l.offerKeys(keys)
					}
				}
				fill()
				if l.sampled != c.fit || l.seen != 100 {
					t.Errorf("%d pushes of %d wait to be counted, want %d", l.sampled, l.seen, c.fit)
				}
				go l.countKeys()
				synctest.Wait()
				for range c.fit {
					l.offerKeys(keys)
					synctest.Wait()
				}
				if l.sampled != 2*c.fit {
					t.Errorf("%d pushes are taken when %d are counted", l.sampled-c.fit, c.fit)
				}
				close(l.queue)
				<-l.done
				if got := l.counter.Ranking().Updates; got != 2*c.fit*uint64(c.length) {
					t.Errorf("%d keys are counted, of %d pushes of %d", got, 2*c.fit, c.length)
				}
			})
		})
	}
}

// At most as many keys are returned as a hot set of the job's dimension may have, the most frequent
// ones.
func TestLearnedFitsAHotSet(t *testing.T) {
	l, err := newLearner(20)
	if err != nil {
		t.Fatal(err)
	}
	for key := range uint64(10) {
		for range key + 1 {
			l.offerKeys([]uint64{key})
			for l.waiting.Load() > 0 {
				runtime.Gosched()
			}
		}
	}
	got := l.finishCount(&job{cfg: Job{Name: "wide", Dim: packer.MaxSlots / 3}})
	want := &Learned{Job: "wide", Dim: packer.MaxSlots / 3, Pushes: 55, Sampled: 55, Updates: 55, Keys: []uint64{9, 8, 7}, Counts: []uint64{10, 9, 8}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The keys of a hot set of several pages can be learnt.
func TestLearnedMayHaveSeveralPages(t *testing.T) {
	const keys = 70_000
	l, err := newLearner(keys + 1)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]uint64, keys)
	for i := range all {
		all[i] = uint64(i)
	}
	l.offerKeys(all)
	got := l.finishCount(&job{cfg: Job{Name: "deep", Dim: 1}})
	if len(got.Keys) != keys || len(got.Counts) != keys || got.CountErr != 0 {
		t.Errorf("%d keys, %d counts, of %d", len(got.Keys), len(got.Counts), keys)
	}
	hot, err := got.Ranking().Top(keys, 1, packer.Meta{})
	if err != nil || hot.Slots() != keys {
		t.Errorf("no hot set of all keys: %v", err)
	}
}

// Without counters nothing can be counted.
func TestLearnerNeedsCounters(t *testing.T) {
	if l, err := newLearner(0); l != nil || err == nil {
		t.Errorf("%+v, %v", l, err)
	}
}
