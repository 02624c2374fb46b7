// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// testFeed submits all of its requests, some in each turn.
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

// fedPush is a request with its result.
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

// A feed's pushes, prepared and not, small and large, are summed exactly, also over faulty links;
// one that is not finite fails alone. Each is settled once.
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

// When its worker ends, a feed's requests fail before it gets the end.
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

// allAtOnce submits all of its requests in its first turn, so that they wait together: those of
// three clients, or of one.
type allAtOnce struct {
	testFeed
	one bool
}

func (f *allAtOnce) Turn() bool {
	for i, p := range f.todo {
		p.feed, p.Owner = &f.testFeed, p
		if !f.one {
			p.From = uint32(i % 3)
		}
		f.w.Hand(&p.Request)
	}
	any := len(f.todo) > 0
	f.todo = nil
	return any
}

// settleAll attaches a feed and waits until all of its pushes are settled.
func settleAll(t *testing.T, w *Worker, pushes []*fedPush, one bool) {
	t.Helper()
	ctx := deadline(t)
	f := &allAtOnce{testFeed{w: w, todo: pushes, left: len(pushes), done: make(chan struct{}), end: make(chan error, 1)}, one}
	if err := w.Attach(ctx, f, -1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		t.Fatal("pushes are not settled")
	}
	if err := w.Attach(ctx, nil, -1); err != nil {
		t.Fatal(err)
	}
}

// A feed can pull like others, and gets the error of a pull that the server refuses.
func TestFeedPulls(t *testing.T) {
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	ctx, w := deadline(t), c.workers[0]
	keys := make([]uint64, 300) // more than a frame has
	for i := range keys {
		keys[i] = uint64(i)<<40 + uint64(i)
	}
	want, got := make([]float32, len(keys)*testDim), make([]float32, len(keys)*testDim)
	if err := w.Pull(ctx, keys, want); err != nil {
		t.Fatal(err)
	}
	pull := &fedPush{Request: Request{Pull: true, Keys: keys, Values: got}}
	settleAll(t, w, []*fedPush{pull}, true)
	if diff := cmp.Diff(want, got); pull.settled != 1 || pull.err != nil || diff != "" {
		t.Errorf("settled %d times, %v: %s", pull.settled, pull.err, diff)
	}
	if err := c.server.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	pull = &fedPush{Request: Request{Pull: true, Keys: keys[:1], Values: got[:testDim]}}
	settleAll(t, w, []*fedPush{pull}, true)
	if pull.settled != 1 || !errors.Is(pull.err, wire.Refusal{Code: wire.CodeUnknownSender}) {
		t.Errorf("settled %d times, %v", pull.settled, pull.err)
	}
}

// Pushes of a feed for several clients that wait together give the same sums, bit for bit, in fewer
// frames than those for one, which are sent separately, in both layouts.
func TestFeedAddsUp(t *testing.T) {
	for _, layout := range []packer.Layout{packer.Dense, packer.LaneAligned} {
		t.Run(layout.String(), func(t *testing.T) {
			var sums [2]any
			var stats [2]WorkerStats
			for i, separate := range []bool{false, true} {
				o := clusterOptions{workers: 1, layout: layout, stripes: 2}
				c := newCluster(t, memFabric(t, o), o)
				rng := rand.New(rand.NewPCG(3, 4))
				var pushes []*fedPush
				for n := range 40 {
					p := &fedPush{}
					p.Keys, p.Values = batch(rng, 300)
					if n%3 == 0 {
						var err error
						if p.Prepared, err = c.workers[0].Prepare(p.Keys); err != nil {
							t.Fatal(err)
						}
						p.Keys = nil
					}
					pushes = append(pushes, p)
				}
				settleAll(t, c.workers[0], pushes[:15], separate)
				settleAll(t, c.workers[0], pushes[15:], separate) // other sums
				for n, p := range pushes {
					if p.settled != 1 || p.err != nil {
						t.Errorf("push %d is settled %d times, with %v", n, p.settled, p.err)
					}
				}
				var err error
				if stats[i], err = c.workers[0].Stats(deadline(t)); err != nil {
					t.Fatal(err)
				}
				sums[i] = c.sums()
			}
			if diff := cmp.Diff(sums[1], sums[0]); diff != "" {
				t.Errorf("separately -, added up +:\n%s", diff)
			}
			together, separately := stats[0], stats[1]
			if separately.PairsAdded != 0 || together.PairsAdded != separately.PairsHot || together.PairsHot >= separately.PairsHot || together.Hot.Sent >= separately.Hot.Sent {
				t.Errorf("added up: %d pairs in place of %d, of %d added, in %d frames instead of %d",
					together.PairsHot, separately.PairsHot, together.PairsAdded, together.Hot.Sent, separately.Hot.Sent)
			}
			if together.RowsCold != separately.RowsCold {
				t.Errorf("%d cold rows instead of %d", together.RowsCold, separately.RowsCold)
			}
			// What was pushed is the same.
			if separately.PairsPushed != separately.PairsHot || together.PairsPushed != separately.PairsPushed ||
				together.PairsCold != separately.PairsCold || together.PairsCold != together.RowsCold*testDim {
				t.Errorf("%d pairs of hot rows and %d others, separately %d and %d", together.PairsPushed, together.PairsCold,
					separately.PairsPushed, separately.PairsCold)
			}
		})
	}
}

// Pushes of jobs whose sums depend on their order, or whose answers belong to one frame, are not
// added up, nor are those for one client only.
func TestFeedDoesNotAddUp(t *testing.T) {
	for name, o := range map[string]clusterOptions{
		"fixed": {arithmetic: aggregator.Fixed}, "lut": {arithmetic: aggregator.LUT}, "fetchadd": {mode: aggregator.FetchAdd}, "one": {},
	} {
		t.Run(name, func(t *testing.T) {
			o.workers, o.layout = 1, packer.Dense
			c := newCluster(t, memFabric(t, o), o)
			rng := rand.New(rand.NewPCG(3, 4))
			var pushes []*fedPush
			hot := uint64(0)
			for range 2 * sumMembers {
				p := &fedPush{}
				p.Keys, p.Values = batch(rng, sumLeast/sumMembers)
				for _, key := range p.Keys {
					if _, ok := c.hot.Rank(key); ok {
						hot += testDim
					}
				}
				pushes = append(pushes, p)
			}
			settleAll(t, c.workers[0], pushes, name == "one")
			for n, p := range pushes {
				if p.settled != 1 || p.err != nil {
					t.Errorf("push %d is settled %d times, with %v", n, p.settled, p.err)
				}
			}
			if s, err := c.workers[0].Stats(deadline(t)); err != nil || s.PairsAdded != 0 || s.PairsHot != hot {
				t.Errorf("%d pairs were added up, %d of %d were sent, %v", s.PairsAdded, s.PairsHot, hot, err)
			}
		})
	}
}

// A sum out of range is not sent: its pushes go separately, and the aggregator checks each of them.
// If it refuses a sum, all pushes of the sum get the refusal, and nothing of that frame is applied.
func TestFeedSumsOutOfRange(t *testing.T) {
	o := clusterOptions{workers: 1, layout: packer.Dense}
	c := newCluster(t, memFabric(t, o), o)
	w, key := c.workers[0], c.hot.Key(0)
	// Of eight times 2^16, all in range, one fits into a slot, whose range ends at 2^17.
	push := func(value float32) (pushes []*fedPush) {
		for range sumMembers {
			keys := []uint64{key}
			for len(keys)*testDim < sumLeast/sumMembers {
				keys = append(keys, uint64(1<<40+len(keys))) // cold
			}
			values := make([]float32, len(keys)*testDim)
			values[0] = value
			pushes = append(pushes, &fedPush{Request: Request{Keys: keys, Values: values}})
		}
		return pushes
	}
	alone := push(1 << 16)
	settleAll(t, w, alone, false)
	refused := 0 // or unknown, if a busy machine repeated the frame
	for _, p := range alone {
		var e *PushError
		if errors.As(p.err, &e) && errors.Is(p.err, wire.Refusal{Code: wire.CodeOverflow}) && e.Refused+e.Unknown == 1 && e.Unacked == 0 {
			refused++
		} else if p.err != nil {
			t.Error(p.err)
		}
	}
	if refused != sumMembers-1 {
		t.Errorf("%d of %d pushes are refused, want all but one", refused, sumMembers)
	}
	// 2^16 is in the slot: a sum of 2^16 is in range itself, but not with it.
	together := push(1 << 13)
	settleAll(t, w, together, false)
	for n, p := range together {
		var e *PushError
		var peer *PeerError
		if !errors.As(p.err, &e) || !errors.As(p.err, &peer) || e.Refused+e.Unknown != 1 || e.Unacked != 0 || !peer.KeyKnown || peer.Key != key {
			t.Errorf("push %d: %v", n, p.err)
		}
	}
	s, err := w.Stats(deadline(t))
	if err != nil || s.PairsAdded != sumMembers*testDim {
		t.Errorf("%d pairs were added, %v", s.PairsAdded, err)
	}
	if got := c.sums()[key][0]; got != 1<<(16-fixedpoint.DefaultExp) {
		t.Errorf("the sum is %v", got)
	}
}
