// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train"
)

// hotServer is a server whose weights say when they were pulled, each row holds its key and the
// number of commits, and that records what is pushed.
type hotServer struct {
	train.Client
	commits float32
	pulled  []uint64 // by the last call, nil if there was no key
	during  func()   // called in each pull, if set

	pushed  []uint64
	grads   []float32
	flushes int
}

func (a *hotServer) Pull(_ context.Context, keys []uint64, dst []float32) error {
	a.pulled = slices.Clone(keys[:len(keys):len(keys)])
	if a.during != nil {
		a.during()
	}
	for i, key := range keys {
		dst[2*i], dst[2*i+1] = float32(key), a.commits
	}
	return nil
}

// BeginPull pulls at once; the rows come with Wait.
func (a *hotServer) BeginPull(ctx context.Context, keys []uint64, dst []float32) (train.Pulling, error) {
	rows := make([]float32, len(dst))
	return arriving{dst, rows}, a.Pull(ctx, keys, rows)
}

type arriving struct{ dst, rows []float32 }

func (p arriving) Wait(context.Context) error {
	copy(p.dst, p.rows)
	return nil
}

func (a *hotServer) Push(_ context.Context, keys []uint64, grads []float32) error {
	a.pushed, a.grads = slices.Clone(keys), slices.Clone(grads)
	return nil
}

func (a *hotServer) Flush(context.Context) error {
	a.flushes++
	return nil
}

// Hot rows are pulled once for three mini-batches or between two reports, cold rows each time; and
// a report that comes back during a pull, which may be missing in the rows of that pull, has them
// pulled again.
func TestHotRowsAreKeptBetweenReports(t *testing.T) {
	set, err := packer.NewHotSet(2, []uint64{30, 10}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	server := &hotServer{}
	h := newHotRows(server, set, 3)
	pull := func(keys []uint64, commits []float32, pulled []uint64) {
		t.Helper()
		dst := make([]float32, 2*len(keys))
		if err := h.Pull(t.Context(), keys, dst); err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if got := [2]float32(dst[2*i:]); got != [2]float32{float32(key), commits[i]} {
				t.Errorf("row %d is %v, want its key and %v commits", key, got, commits[i])
			}
		}
		if !slices.Equal(server.pulled, pulled) {
			t.Errorf("pulled %v, want %v", server.pulled, pulled)
		}
	}
	pull([]uint64{10, 20}, []float32{0, 0}, []uint64{10, 20})
	server.commits = 1
	pull([]uint64{10, 20, 30}, []float32{0, 1, 1}, []uint64{20, 30})
	h.expireWeights()
	server.commits, server.during = 2, h.expireWeights
	pull([]uint64{10, 30}, []float32{2, 2}, []uint64{10, 30})
	server.commits, server.during = 3, nil
	pull([]uint64{10, 30}, []float32{3, 3}, []uint64{10, 30})
	pull([]uint64{10, 30}, []float32{3, 3}, nil)
	server.commits = 4
	for range 3 { // mini-batches, for which rows are kept
		pull([]uint64{10}, []float32{3}, nil)
		if err := h.Push(t.Context(), []uint64{10}, []float32{1, 1}); err != nil {
			t.Fatal(err)
		}
	}
	pull([]uint64{10}, []float32{4}, []uint64{10})
}

// A pull may go on while the mini-batch before is pushed; and rows are kept no longer than if they
// had come when it began.
func TestHotRowsArePulledEarly(t *testing.T) {
	set, err := packer.NewHotSet(2, []uint64{30, 10}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	server := &hotServer{}
	h := newHotRows(server, set, 1)
	dst := make([]float32, 4)
	begin := func(keys ...uint64) train.Pulling {
		t.Helper()
		p, err := h.BeginPull(t.Context(), keys, dst)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	wait := func(p train.Pulling, want ...float32) {
		t.Helper()
		if err := p.Wait(t.Context()); err != nil || !slices.Equal(dst, want) {
			t.Errorf("the rows are %v, %v, want %v", dst, err, want)
		}
	}
	wait(begin(10, 20), 10, 0, 20, 0)
	p := begin(20, 30)
	if err := h.Push(t.Context(), []uint64{10, 20}, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(server.pushed, []uint64{10}) || !slices.Equal(server.grads, []float32{1, 2}) {
		t.Errorf("the rows %v, %v are pushed beside a pull", server.pushed, server.grads)
	}
	wait(p, 20, 0, 30, 0)
	server.commits = 1
	wait(begin(10, 30), 10, 1, 30, 1) // the push ended the period
	p = begin(10, 40)                 // of which one is kept
	h.expireWeights()
	server.commits = 2
	wait(p, 10, 1, 40, 1)
	wait(begin(10, 40), 10, 2, 40, 2)
}

// Gradients of hot rows are added up over three mini-batches, or until Flush, and pushed in the
// order of their keys, once; cold rows are pushed at once.
func TestHotRowsAreAddedUp(t *testing.T) {
	set, err := packer.NewHotSet(2, []uint64{30, 10, 40}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	server := &hotServer{}
	h := newHotRows(server, set, 3)
	pushes := func(what string, keys []uint64, grads []float32) {
		t.Helper()
		if !slices.Equal(server.pushed, keys) || !slices.Equal(server.grads, grads) {
			t.Errorf("%s pushes the rows %v, %v, want %v, %v", what, server.pushed, server.grads, keys, grads)
		}
	}
	push := func(keys []uint64, grads ...float32) {
		t.Helper()
		if err := h.Push(t.Context(), keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		t.Helper()
		if err := h.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	push([]uint64{10, 20, 30}, 1, 2, 3, 4, 5, 6)
	pushes("the first mini-batch", []uint64{20}, []float32{3, 4})
	push([]uint64{30, 35}, 10, 20, 7, 8)
	pushes("the second", []uint64{35}, []float32{7, 8})
	if server.flushes != 0 || h.added != 2 {
		t.Errorf("%d flushes, and %d gradients were added to others, want 0 and 2", server.flushes, h.added)
	}
	flush()
	pushes("Flush", []uint64{10, 30}, []float32{1, 2, 15, 26})
	flush()
	pushes("the next", []uint64{10, 30}, []float32{1, 2, 15, 26}) // that of before: there is nothing to push
	push([]uint64{30}, 1, 1)
	flush()
	pushes("Flush", []uint64{30}, []float32{1, 1})
	for range 3 {
		push([]uint64{10, 50}, 1, 2, 3, 4)
	}
	pushes("the third mini-batch", []uint64{10}, []float32{3, 6})
	push([]uint64{40}, 1, 1)
	flush()
	pushes("Flush after it", []uint64{40}, []float32{1, 1})
	if server.flushes != 4 || h.added != 6 {
		t.Errorf("%d flushes, and %d gradients were added to others, want 4 and 6", server.flushes, h.added)
	}
}

// Without barriers, too, a worker has hot weights that follow its own reports: alone and one
// mini-batch ahead it learns nearly as fast as with barriers.
func TestHotRowsFollowReports(t *testing.T) {
	c := newCluster(t, 1)
	c.Model.Epochs = 3
	startSwitch(t, c)
	with := *mustTrain(t, c).workers[0].LogLoss
	if err := os.Remove(c.Server.Checkpoint); err != nil {
		t.Fatal(err)
	}
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames, c.Job.Staleness, c.Job.Accumulate = false, time.Hour, 0, 1, 4 // reports are what is harvested for
	if without := *mustTrain(t, c).workers[0].LogLoss; without > 1.5*with {
		t.Errorf("the loss is %.4f, with barriers %.4f", without, with)
	} else {
		t.Logf("the loss is %.4f, with barriers %.4f", without, with)
	}
}

// No gradient is lost on the way into sums, and fewer are pushed.
func TestAccumulatedGradientsArePushed(t *testing.T) {
	c := newCluster(t, 2)
	c.Model.Epochs = 2
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames, c.Job.Staleness = false, 20*time.Millisecond, 0, 9
	startSwitch(t, c)
	var pairs, hot, added [2]uint64
	for i, accumulate := range []int{1, 3} {
		c.Job.Accumulate = accumulate
		for _, w := range mustTrain(t, c).workers {
			hot[i], added[i] = hot[i]+w.HotPairs, added[i]+w.AddedPairs
			pairs[i] += w.HotPairs + w.ColdPairs + w.AddedPairs
		}
		if err := os.Remove(c.Server.Checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	if pairs[0] != pairs[1] || added[0] != 0 || added[1] == 0 || hot[1] != hot[0]-added[1] {
		t.Errorf("of %v gradients %v were pushed to hot rows, %v added to others before", pairs, hot, added)
	}
}
