// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// Started pulls end in any order, including one of no rows, concurrently with pushes and on a path
// that loses, duplicates and reorders frames.
func TestSeveralPullsHaveBegun(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, faults: link.Faults{Drop: 0.03, Duplicate: 0.03, Reorder: 0.05}}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	var pulls []func(context.Context) error
	var got, want [][]float32
	for _, n := range []int{0, 500, 1, 5000, 0, 700} {
		keys, rows := rowsOf(n)
		dst := make([]float32, len(rows))
		p, err := w.BeginPull(ctx, keys, dst)
		if err != nil {
			t.Fatal(err)
		}
		pulls, got, want = append(pulls, p), append(got, dst), append(want, rows)
	}
	pushed := pushAll(ctx, t, []*Worker{w}, 5, 3, 500)
	for i := len(pulls) - 1; i >= 0; i-- {
		if err := pulls[i](ctx); err != nil || !slices.Equal(got[i], want[i]) {
			t.Errorf("pull %d has wrong rows, %v", i, err)
		}
	}
	if err := w.Flush(ctx); err != nil {
		t.Error(err)
	}
	if len(pushed) == 0 {
		t.Error("nothing was pushed")
	}
	released(ctx, t, w)
}

// released fails if a worker has operations left or its link lacks buffers.
func released(ctx context.Context, t *testing.T, w *Worker) {
	t.Helper()
	if err := w.Flush(ctx); err != nil {
		t.Error(err)
	}
	if err := w.Do(ctx, func() {
		for _, o := range w.ops {
			if o != nil {
				t.Errorf("an operation is left: %d frames outstanding", o.outstanding)
			}
		}
		if len(w.pulls) > 0 {
			t.Errorf("%d pulls are left", len(w.pulls))
		}
		if l, ok := w.link.(*memLink); ok && len(l.free) != len(l.bufs) {
			t.Errorf("%d of %d buffers are free", len(l.free), len(l.bufs))
		}
	}); err != nil {
		t.Error(err)
	}
}

// A pull that is abandoned or refused writes no more rows, does not delay later ones, and leaves
// nothing behind.
func TestPullThatIsGivenUpLeavesNothing(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	keys, want := rowsOf(20_000) // more than a window of frames
	for range 20 {
		got := make([]float32, len(want))
		p, err := w.BeginPull(ctx, keys, got)
		if err != nil {
			t.Fatal(err)
		}
		given, give := context.WithCancelCause(ctx)
		reason := errors.New("given up")
		go give(reason)
		switch err := p(given); {
		case err == nil:
			if !slices.Equal(got, want) {
				t.Error("wrong rows")
			}
		case !errors.Is(err, reason):
			t.Errorf("the reason is lost: %v", err)
		}
		clear(got) // the race detector reports a row that is written now
		if err := w.Pull(ctx, keys[:100], got[:100*testDim]); err != nil || !slices.Equal(got[:100*testDim], want[:100*testDim]) {
			t.Errorf("the next pull: %v", err)
		}
		if slices.IndexFunc(got[100*testDim:], func(v float32) bool { return v != 0 }) >= 0 {
			t.Error("rows are written after the pull is given up")
		}
	}
	released(ctx, t, w)
}

// The server readmits the worker, in another epoch, while rows are requested: the pull is refused,
// and nothing is left.
func TestPullOfAnotherEpoch(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	from := w.link.Local()
	if err := c.server.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.server.Admit(ctx, 1, from.AddrPort(), testServerEpoch+1); err != nil {
		t.Fatal(err)
	}
	keys, want := rowsOf(20_000)
	p, err := w.BeginPull(ctx, keys, make([]float32, len(want)))
	if err != nil {
		t.Fatal(err)
	}
	refusal := wire.Refusal{}
	if err := p(ctx); !errors.As(err, &refusal) || refusal.Code != wire.CodeWrongEpoch {
		t.Errorf("%v", err)
	}
	released(ctx, t, w)
}

// The server is silent: all started pulls end with the worker, as do those that start at the same
// time.
func TestPullsOfASilentServer(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, flow: retransmit.Config{Silence: 200 * time.Millisecond}}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	if err := c.server.Close(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			keys, want := rowsOf(100 * i)
			for {
				p, err := w.BeginPull(ctx, keys, make([]float32, len(want)))
				if err == nil {
					err = p(ctx)
				}
				silent := (*retransmit.SilentPeerError)(nil)
				if err == nil && i == 0 {
					continue
				}
				if !errors.As(err, &silent) {
					t.Errorf("pull of %d rows: %v", len(keys), err)
				}
				return
			}
		})
	}
	wg.Wait()
}

// A started pull that is abandoned ends at once, although its server answers nothing; its
// destination must have the size of its rows.
func TestPullOfASilentServerIsGivenUp(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, flow: retransmit.Config{Silence: time.Hour}}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	if err := c.server.Close(); err != nil {
		t.Fatal(err)
	}
	keys, want := rowsOf(20_000)
	p, err := w.BeginPull(ctx, keys, make([]float32, len(want)))
	if err != nil {
		t.Fatal(err)
	}
	for asked := uint64(0); asked == 0; { // its frames are in flight
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		asked = s.Cold.Sent
	}
	given, give := context.WithCancel(ctx)
	give()
	if err := p(given); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := w.BeginPull(ctx, keys, make([]float32, len(want)+1)); err == nil {
		t.Error("a pull into too many floats begins")
	}
}
