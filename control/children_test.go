// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// tree is three aggregators: the first is the parent of the second, and that of the third. All jobs
// have the number and the slots of spec, but those of a child are others of its parent's.
type tree struct {
	at     [3]*libras
	jobs   [3]*Owned
	epochs [3]uint16
	links  [3]*client // to a child, from its parent
	seq    [3]uint32
	pushed map[uint32]int64 // by the first one's rank
}

var childAt = netip.MustParseAddrPort("192.0.2.1:7700")

// childRanks are the ranks of a child in its parent, in two runs.
var childRanks = []*pb.RankRun{{Slots: 30, First: 60}, {Slots: 20, First: 10}}

func toParent(rank uint32) uint32 {
	if rank < 30 {
		return 60 + rank
	}
	return 10 + rank - 30
}

func newTree(t *testing.T, change ...func(of int, cfg *AggregatorConfig)) *tree {
	t.Helper()
	all := &tree{pushed: map[uint32]int64{}}
	slots := []uint32{100, 50, 9}
	for i := 2; i >= 0; i-- {
		all.at[i] = startAggregator(t, func(cfg *AggregatorConfig) {
			cfg.Dial = func(context.Context, netip.AddrPort) (*grpc.ClientConn, error) {
				all.links[i+1] = all.at[i+1].dial(t, access.Security{}, "192.0.2.9")
				return all.links[i+1].ClientConn, nil
			}
			for _, f := range change {
				f(i, cfg)
			}
		})
		s := spec()
		s.Slots = slots[i]
		all.jobs[i] = all.at[i].create(t, s)
		worker := all.at[i].dial(t, access.Security{}, workerIP.String())
		_, a, err := joinAs(t.Context(), pb.NewAggregatorClient(worker), joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		all.epochs[i] = uint16(a.Epoch)
	}
	for i, ranks := range [][]*pb.RankRun{childRanks, {{Slots: 9, First: 25}}} { // the second begins in the first run
		for range 2 { // repeating is harmless
			if err := all.jobs[i].AddChild(t.Context(), childAt, all.jobs[i+1], ranks); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// push pushes a value to a rank of one of the three.
func (all *tree) push(t *testing.T, to int, rank uint16, value float32) {
	t.Helper()
	all.seq[to]++
	all.at[to].push(t, all.epochs[to], all.seq[to], rank, value)
	first := uint32(rank)
	if to == 2 {
		first += 25
	}
	if to > 0 {
		first = toParent(first)
	}
	all.pushed[first] += units(t, value)
}

// held returns how many harvests of one of the three were acknowledged.
func (all *tree) held(t *testing.T, of int) uint64 {
	t.Helper()
	return all.at[of].stats(t).Jobs[0].HarvestHeld.Count
}

func (all *tree) check(t *testing.T, got *sums) {
	t.Helper()
	for rank := range uint32(100) {
		if sum := got.rank(rank); sum != all.pushed[rank] {
			t.Fatalf("the sum of rank %d is %d, and %d was pushed", rank, sum, all.pushed[rank])
		}
	}
}

// Whatever connections break, at any moments, a harvest has all that the parent, its child and that
// one's child had acknowledged before it was asked for, and everything once.
func TestHarvestsOfAParentHaveEverythingOnce(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			all := newTree(t)
			got := newSums()
			h, stop := harvester(t, all.jobs[0], func(h *Harvest) error {
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
				return got.apply(h)
			})
			links := []*client{all.at[0].host, all.links[1], all.links[2]}
			for range 15 {
				for range rng.IntN(4) {
					to := rng.IntN(3)
					all.push(t, to, uint16(rng.IntN([]int{100, 50, 9}[to])), float32(1+rng.IntN(9)))
				}
				harm, link, half := time.Duration(rng.IntN(6_000))*time.Microsecond, links[rng.IntN(3)], rng.IntN(4) == 0
				time.AfterFunc(harm, func() {
					if half {
						link.HalfOpen()
					} else {
						link.Break()
					}
				})
				if err := h.Now(t.Context()); err != nil {
					t.Fatal(err)
				}
				all.check(t, got)
			}
			if _, frames := got.count(); frames != uint64(all.seq[0]+all.seq[1]+all.seq[2]) || got.repeats > 0 {
				t.Errorf("seed %d: %d frames, sent were %v; %d repeats", seed, frames, all.seq, got.repeats)
			}
			_ = stop()
		})
	}
}

// A child's harvest is acknowledged when its parent's is, and not before: until then all three
// repeat theirs.
func TestChildIsAcknowledgedAfterItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTree(t)
		for to := range 3 {
			all.push(t, to, 3, 1)
		}
		synctest.Wait() // the harvests with which they were added are acknowledged
		var before [3]uint64
		for i := range before {
			before[i] = all.held(t, i)
		}
		got, applies := newSums(), make(chan struct{})
		h, stop := harvester(t, all.jobs[0], func(h *Harvest) error {
			<-applies
			return got.apply(h)
		})
		h.Ask()
		synctest.Wait()
		all.links[1].Break()
		time.Sleep(10 * time.Second)
		for i := range before {
			if n := all.held(t, i); n != before[i] {
				t.Errorf("a harvest of job %d is acknowledged before its parent's", i)
			}
		}
		close(applies)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		all.check(t, got)
		for i := range before {
			if n := all.held(t, i); n == before[i] {
				t.Errorf("no harvest of job %d is acknowledged", i)
			}
		}
		_ = stop()
	})
}

// A child that is removed is harvested by another from then on: everything once, also what its
// parent had taken and its owner had not acknowledged.
func TestRemovedChildIsHarvestedByItsOwner(t *testing.T) {
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			all := newTree(t)
			got, own, applies := newSums(), newSums(), make(chan struct{})
			h, stop := harvester(t, all.jobs[0], func(h *Harvest) error {
				<-applies
				return got.apply(h)
			})
			defer func() { _ = stop() }()
			all.push(t, 1, 3, 1)
			if asked {
				h.Ask() // the parent takes it, and waits
				synctest.Wait()
			}
			all.push(t, 1, 3, 2)
			removed := make(chan uint64, 1)
			go func() {
				last, err := all.jobs[0].RemoveChild(t.Context(), all.jobs[1])
				if err != nil {
					t.Error(err)
				}
				removed <- last
			}()
			synctest.Wait()
			select {
			case last := <-removed:
				if asked {
					t.Errorf("removed with harvest %d, which is not acknowledged", last)
				}
				removed <- last
			default:
			}
			close(applies)
			last := <-removed
			again, err := all.jobs[0].RemoveChild(t.Context(), all.jobs[1])
			if err != nil || again != last {
				t.Errorf("removed again: %d, %v, want %d", again, err, last)
			}
			if err := all.jobs[0].AddChild(t.Context(), childAt, all.jobs[1], childRanks); err == nil ||
				!strings.Contains(err.Error(), "it was a child before") {
				t.Errorf("added again: %v", err)
			}
			theirs := NewHarvester(all.jobs[1], own.apply, quiet)
			theirs.ResumeAfter(last)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go func() { _ = theirs.Run(ctx) }()
			for _, one := range []*Harvester{theirs, h} {
				if err := one.Now(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if sum := got.rank(63) + own.rank(3); sum != units(t, 3) || asked != (got.rank(63) == units(t, 1)) {
				t.Errorf("asked %v: sums %d by the parent, %d of its own, want %d", asked, got.rank(63), own.rank(3), units(t, 3))
			}
		})
	}
}

// interrupted does something when a bank is frozen.
type interrupted struct {
	aggregator.Plane
	interrupt func()
}

func (p *interrupted) Swap(job uint16) (*aggregator.Bank, error) {
	p.interrupt()
	return p.Plane.Swap(job)
}

// What a parent says of its children: their harvests, which of these came again, broken
// connections, and for how long one has not answered.
func TestStatsOfChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last interrupted
		all := newTree(t, func(of int, cfg *AggregatorConfig) {
			if of == 2 {
				last.Plane = cfg.Plane
				cfg.Plane = &last
			}
		})
		child := func(of int) *pb.ChildStats {
			t.Helper()
			stats := all.at[of].stats(t).Jobs[0].Children
			if len(stats) != 1 {
				t.Fatalf("job %d has children %v", of, stats)
			}
			s := stats[0]
			if s.Job != uint32(all.jobs[of+1].ID) || s.Instance != all.jobs[of+1].Instance || s.Control != childAt.String() {
				t.Errorf("the child of job %d is %v", of, s)
			}
			return s
		}
		check := func(when string, of int, harvests, repeated, broken uint64, awaited time.Duration) {
			t.Helper()
			s := child(of)
			if s.Harvests != harvests || s.Repeated != repeated || s.BrokenStreams != broken ||
				time.Duration(s.AwaitedNs) != awaited || s.Answer.Count != harvests {
				t.Errorf("%s: the child of job %d: %v", when, of, s)
			}
		}
		if n := all.at[2].stats(t).Jobs[0].Children; len(n) > 0 {
			t.Errorf("the last one has children %v", n)
		}
		check("added", 0, 0, 0, 0, 0)
		h, stop := harvester(t, all.jobs[0], newSums().apply)
		defer func() { _ = stop() }()
		now := func() {
			t.Helper()
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		now()
		check("harvested", 0, 1, 0, 0, 0)
		check("harvested", 1, 1, 0, 0, 0)

		last.interrupt = func() { all.links[2].Vanish() } // the harvest is frozen, and cannot be sent
		all.push(t, 2, 3, 1)
		h.Ask()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		check("silent", 0, 1, 0, 0, 2*time.Second)
		if s := child(1); s.Harvests != 1 || s.Repeated != 0 || s.BrokenStreams == 0 || s.AwaitedNs != uint64(2*time.Second) {
			t.Errorf("silent: the child of job 1: %v", s)
		}
		last.interrupt = func() {}
		all.links[2].ComeBack()
		now()
		for of, repeated := range []uint64{0, 1} { // the one that came again answers no request, so another one followed
			s := child(of)
			if s.Harvests != 3 || s.Repeated != repeated || s.AwaitedNs != 0 || time.Duration(s.Answer.MaxNs) < 2*time.Second {
				t.Errorf("after a broken connection: the child of job %d: %v", of, s)
			}
		}
		if _, err := all.jobs[0].RemoveChild(t.Context(), all.jobs[1]); err != nil {
			t.Fatal(err)
		}
		if left := all.at[0].stats(t).Jobs[0].Children; len(left) > 0 {
			t.Errorf("one that was removed: %v", left)
		}
	})
}

// A parent that loses a child ends its harvest, and says so; so does one whose sums become too
// large with a child's.
func TestParentEndsWithItsChild(t *testing.T) {
	for want, end := range map[string]func(*testing.T, *tree){
		"lost its child, job 5 at 192.0.2.1:7700: ": func(t *testing.T, all *tree) {
			if err := all.jobs[1].Remove(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"it cannot be reached for 5s": func(_ *testing.T, all *tree) { all.links[1].Vanish() },
		"the sum of rank 63 is too large": func(t *testing.T, all *tree) {
			all.push(t, 0, 63, float32(math.Ldexp(1, 16)))
			all.push(t, 1, 3, float32(math.Ldexp(1, 16)))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			all := newTree(t)
			end(t, all)
			h, stop := harvester(t, all.jobs[0], newSums().apply)
			err := h.Now(t.Context())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			ended := stop()
			if is := errors.Is(all.jobs[0].Lost("harvest", ended), ErrDiverged); is != strings.Contains(want, "large") {
				t.Errorf("%q: diverged %v", want, is)
			}
		})
	}
}

// pushTo pushes 1 to rank 0 of a job, as frame 1 of sender 1.
func pushTo(t *testing.T, l *libras, job, epoch uint16) {
	t.Helper()
	payload, reply := make([]byte, wire.HotLen(1)), make([]byte, 1500)
	wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: job, Sender: 1, Epoch: epoch, Seq: 1}.Put(payload)
	s := wire.StripeAt(payload, 0)
	s.SetMask(1)
	s.SetSlot(0, 0)
	s.SetValue(0, 1)
	l.acknowledged(t, payload, reply)
}
