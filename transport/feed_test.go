// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
)

// testFeed hands all of its requests over, some in each turn.
type testFeed struct {
	w      *Worker
	rng    *rand.Rand
	todo   []*fedPush
	left   int // not settled
	slept  int
	awoken int
	done   chan struct{} // closed when all are settled
	end    chan error
}

// fedPush is a request and what became of it.
type fedPush struct {
	Request
	feed    *testFeed
	bad     bool // a gradient is not finite
	settled int
	err     error
}

func (p *fedPush) Settled(err error) {
	p.settled++
	p.err = err
	if p.feed.left--; p.feed.left == 0 {
		close(p.feed.done)
	}
}

func (f *testFeed) Turn() bool {
	n := min(len(f.todo), f.rng.IntN(20))
	for _, p := range f.todo[:n] {
		p.Owner = p
		f.w.Hand(&p.Request)
	}
	f.todo = f.todo[n:]
	return n > 0
}

func (f *testFeed) Sleep() bool {
	if len(f.todo) > 0 {
		return false
	}
	f.slept++
	return true
}

func (f *testFeed) Awake()        { f.awoken++ }
func (f *testFeed) End(err error) { f.end <- err }

// A feed's pushes, prepared and not, small and large, are summed exactly, also over faulty links; one that is not
// finite fails alone. Each is settled once.
func TestFeed(t *testing.T) {
	for name, faults := range map[string]link.Faults{"": {}, "faults": harsh} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 2, flow: hasty, faults: faults, layout: packer.Dense}
			c := newCluster(t, memFabric(t, o), o)
			want := newLedger()
			var feeds []*testFeed
			var all [][]*fedPush
			for i, w := range c.workers {
				f := &testFeed{w: w, rng: rand.New(rand.NewPCG(11, uint64(i))), done: make(chan struct{}), end: make(chan error, 1)}
				for n := range 300 {
					p := &fedPush{feed: f}
					p.Keys, p.Values = batch(f.rng, f.rng.IntN(1+f.rng.IntN(600)))
					if n%7 == 3 {
						var err error
						if p.Prepared, err = w.Prepare(p.Keys); err != nil {
							t.Fatal(err)
						}
						p.Keys = nil
					}
					if p.bad = len(p.Values) > 0 && f.rng.IntN(10) == 0; p.bad {
						p.Values[f.rng.IntN(len(p.Values))] = float32(math.NaN())
					} else if p.Prepared != nil {
						want.addBatch(p.Prepared.keys, p.Values)
					} else {
						want.addBatch(p.Keys, p.Values)
					}
					f.todo = append(f.todo, p)
				}
				f.left = len(f.todo)
				feeds, all = append(feeds, f), append(all, f.todo)
				if err := w.Attach(ctx, f, -1); err != nil {
					t.Fatal(err)
				}
				if err := w.Attach(ctx, &testFeed{}, -1); !errors.Is(err, ErrConfig) {
					t.Errorf("a second feed: %v", err)
				}
			}
			for i, f := range feeds {
				select {
				case <-f.done:
				case <-ctx.Done():
					t.Fatal("pushes are not settled")
				}
				if err := c.workers[i].Flush(ctx); err != nil {
					t.Errorf("a flush of others learns of the feed's failures: %v", err)
				}
				if err := c.workers[i].Attach(ctx, nil, -1); err != nil {
					t.Fatal(err)
				}
				if f.slept != f.awoken {
					t.Errorf("%d sleeps, %d ends of sleeps", f.slept, f.awoken)
				}
				for n, p := range all[i] {
					var notFinite *packer.NotFiniteError
					if p.settled != 1 || p.bad != errors.As(p.err, &notFinite) || !p.bad && p.err != nil {
						t.Errorf("push %d, not finite: %v, is settled %d times, with %v", n, p.bad, p.settled, p.err)
					}
				}
			}
			if diff := cmp.Diff(withoutZeros(want.sums), c.sums()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// When its worker ends, a feed's requests fail before it learns of the end.
func TestFeedOfAWorkerThatEnds(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, layout: packer.Dense}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	_ = c.server.Close() // nothing is acknowledged any more
	f := &testFeed{w: w, rng: rand.New(rand.NewPCG(1, 1)), left: 1, done: make(chan struct{}), end: make(chan error, 1)}
	p := &fedPush{feed: f, Request: Request{Keys: []uint64{7000}, Values: make([]float32, testDim)}}
	f.todo = []*fedPush{p}
	if err := w.Attach(ctx, f, -1); err != nil {
		t.Fatal(err)
	}
	var closing sync.WaitGroup
	closing.Go(func() { _ = w.Close() })
	if err := <-f.end; !errors.Is(err, ErrClosed) {
		t.Errorf("the feed ends with %v", err)
	}
	closing.Wait()
	if handed := len(f.todo) == 0; handed && (p.settled != 1 || !errors.Is(p.err, ErrClosed)) {
		t.Errorf("the push is settled %d times, with %v", p.settled, p.err)
	}
	if err := w.Attach(ctx, f, -1); !errors.Is(err, ErrClosed) {
		t.Errorf("a worker that has ended takes a feed: %v", err)
	}
}
