// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/wire"
)

// harvester starts the harvest of a job with its own context.
func harvester(t *testing.T, job *Owned, apply func(*Harvest) error) (h *Harvester, stop func() error) {
	t.Helper()
	h = NewHarvester(job, apply, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	return h, func() error {
		cancel()
		return <-ran
	}
}

func TestHarvestDeliversEverySumOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		epoch := l.join(t)
		got := newSums()
		h, stop := harvester(t, job, got.apply)
		seq, want := uint32(wire.FirstSeq), int64(0)
		for round := range 5 {
			for range 10 {
				l.push(t, epoch, seq, 3, 0.5)
				seq++
				want += units(t, 0.5)
			}
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			if sum := got.rank(3); sum != want {
				t.Fatalf("round %d: sum %d, want %d", round, sum, want)
			}
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if err := h.Now(t.Context()); err == nil {
			t.Error("Now succeeds on a harvester that has ended")
		}
	})
}

// A harvest that could not be applied is sent again, under the same number, when the server runs
// its harvester again; later sums are in the next one.
func TestUnacknowledgedHarvestIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		epoch := l.join(t)
		l.push(t, epoch, 1, 9, 1)
		got := newSums()
		got.failing = errors.New("disk full")
		h := NewHarvester(job, got.apply, quiet)
		ran := make(chan error, 1)
		go func() { ran <- h.Run(t.Context()) }()
		if err := h.Now(t.Context()); err == nil {
			t.Fatal("a harvest that could not be applied counts as done")
		}
		if err := <-ran; !errors.Is(err, got.failing) {
			t.Fatalf("Run ended with %v", err)
		}
		l.push(t, epoch, 2, 9, 2) // into the other bank
		got.failing = nil
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ran <- h.Run(ctx) }()
		synctest.Wait()
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if want := units(t, 3); got.rank(9) != want {
			t.Errorf("sum %d, want %d", got.rank(9), want)
		}
		if got.frames != 2 || got.repeats != 0 || !slices.Equal(got.numbers[:2], []uint64{1, 2}) {
			t.Errorf("%d frames in harvests %v, with %d repeats", got.frames, got.numbers, got.repeats)
		}
	})
}

// A harvest that takes several messages, with zero sums in between.
func TestHarvestOfManyChunks(t *testing.T) {
	for slots, want := range map[int]int{chunkSums - 1: 1, chunkSums: 1, chunkSums + 1: 1, chunkSums + groupSlots: 2, 3*chunkSums + groupSlots: 4} {
		synctest.Test(t, func(t *testing.T) {
			l := startAggregator(t)
			s := spec()
			s.Slots = uint32(slots + 3)
			job := l.create(t, s)
			l.pushAll(t, l.join(t), slots)
			var got Harvest
			h, stop := harvester(t, job, func(h *Harvest) error { got = *h; return nil })
			defer func() { _ = stop() }()
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got.Chunks != want {
				t.Errorf("%d slots came in %d messages, want %d", slots, got.Chunks, want)
			}
			if len(got.Ranks) != slots || len(got.Sums) != slots {
				t.Fatalf("%d ranks and %d sums, want %d", len(got.Ranks), len(got.Sums), slots)
			}
			for i := range got.Ranks {
				if got.Ranks[i] != uint32(i) || got.Sums[i] != units(t, 1) {
					t.Fatalf("place %d: sum %d of rank %d", i, got.Sums[i], got.Ranks[i])
				}
			}
			if frames := (slots + wire.Lanes - 1) / wire.Lanes; got.Number != 1 || got.Frames != uint64(frames) || got.Pairs != uint64(slots) {
				t.Errorf("harvest %d of %d frames and %d pairs, want 1, %d, %d", got.Number, got.Frames, got.Pairs, frames, slots)
			}
		})
	}
}

// A harvest requested while another is pending follows it, once, however often it was requested.
func TestHarvestsDuringAPendingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.HarvestPeriodUs, s.HarvestFrames = 1000, 1
		job := l.create(t, s)
		epoch := l.join(t)
		applying, applied := make(chan struct{}), make(chan struct{})
		var frames []uint64
		h, stop := harvester(t, job, func(h *Harvest) error {
			frames = append(frames, h.Frames)
			if h.Number == 1 {
				close(applying)
				<-applied
			}
			return nil
		})
		l.push(t, epoch, 1, 0, 1)
		<-applying
		answers := make(chan error, 3)
		for i := range uint32(3) {
			l.push(t, epoch, 2+i, 0, 1)
			go func() { answers <- h.Now(t.Context()) }()
		}
		time.Sleep(20 * time.Millisecond) // many periods, and enough frames
		synctest.Wait()
		if len(frames) != 1 || len(answers) > 0 {
			t.Errorf("%d harvests and %d answers while the first is pending", len(frames), len(answers))
		}
		close(applied)
		for range 3 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		_ = stop()
		if frames[0] != 1 || frames[1] != 3 {
			t.Errorf("harvests of %v frames, want 1, then 3", frames)
		}
	})
}

// Periods keep to their grid, and an empty one also has a harvest.
func TestPeriodicHarvest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.HarvestPeriodUs = 1000
		job := l.create(t, s)
		epoch := l.join(t)
		got := newSums()
		begun := time.Now()
		_, stop := harvester(t, job, got.apply)
		time.Sleep(4*time.Millisecond + 500*time.Microsecond)
		l.push(t, epoch, 1, 2, 1)
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		_ = stop()
		if n := len(got.numbers); n != 9 || time.Since(begun) != 9500*time.Microsecond {
			t.Errorf("%d harvests in %v, want one a millisecond", n, time.Since(begun))
		}
		if got.frames != 1 || got.pairs != 1 || got.rank(2) != units(t, 1) {
			t.Errorf("harvests of %d frames, %d pairs, sum %d", got.frames, got.pairs, got.rank(2))
		}
		st := l.stats(t).Jobs[0]
		if st.Harvests != 9 || st.HarvestInterval.Count != 8 || st.HarvestInterval.MeanNs != 1e6 || st.HarvestInterval.LastNs != 1e6 || st.HarvestHeld.Count != 9 {
			t.Errorf("statistics %v", st)
		}
	})
}

// A requested harvest starts a new period: sums need not be fetched again so soon.
func TestRequestedHarvestBeginsPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.HarvestPeriodUs = 10_000
		job := l.create(t, s)
		got := newSums()
		h, stop := harvester(t, job, got.apply)
		for range 5 {
			time.Sleep(6 * time.Millisecond)
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n, _ := got.count(); n != 5 {
			t.Errorf("%d harvests while one was asked for every 6 ms, want these 5", n)
		}
		time.Sleep(9 * time.Millisecond)
		synctest.Wait()
		if n, _ := got.count(); n != 5 {
			t.Errorf("%d harvests 9 ms after the last that was asked for, want 5", n)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n, _ := got.count(); n != 6 {
			t.Errorf("%d harvests 11 ms after the last that was asked for, want 6", n)
		}
		_ = stop()
	})
}

// The statistics show how long the server held a harvest, and intervals only include time within a
// stream.
func TestHarvestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		takes := 9 * time.Millisecond
		h, stop := harvester(t, job, func(*Harvest) error { time.Sleep(takes); return nil })
		for i := range 3 {
			if i == 2 {
				l.host.Break()
				time.Sleep(time.Second)
			}
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			takes = 3 * time.Millisecond
			time.Sleep(2 * time.Millisecond)
		}
		_ = stop()
		st := l.stats(t).Jobs[0]
		if in := st.HarvestInterval; in.Count != 1 || in.LastNs != 11e6 {
			t.Errorf("intervals %v, want one of 11ms", in)
		}
		if age := st.GradientAge; age.Count != 0 {
			t.Errorf("ages %v of no gradients", age)
		}
		if held := st.HarvestHeld; held.Count != 3 || held.LastNs != 3e6 || held.MaxNs != 9e6 || held.MeanNs != 5e6 {
			t.Errorf("held %v, want 9ms, 3ms, 3ms", held)
		}
	})
}

// The statistics show how old the oldest gradient of a harvest may be when it is applied: it may
// have come just after the harvest before, which may have been empty.
func TestGradientAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		epoch := l.join(t)
		h, stop := harvester(t, job, func(*Harvest) error { time.Sleep(3 * time.Millisecond); return nil })
		for seq := range uint32(4) {
			time.Sleep(7 * time.Millisecond)
			if seq != 1 {
				l.push(t, epoch, seq+1, 2, 1)
			}
			time.Sleep(5 * time.Millisecond)
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		_ = stop()
		age := l.stats(t).Jobs[0].GradientAge
		if age.Count != 3 || age.LastNs != 15e6+3e6 || age.MaxNs != 15e6+3e6 {
			t.Errorf("ages %v, want 3, the last of 12+3 ms since the harvest before began and 3 ms to apply", age)
		}
	})
}

// A harvest by count begins when there are as many frames, and not earlier; then the period starts
// again.
func TestHarvestByCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		s := spec()
		s.HarvestFrames, s.HarvestPeriodUs = 10, 100_000
		job := l.create(t, s)
		epoch := l.join(t)
		got := newSums()
		_, stop := harvester(t, job, got.apply)
		for seq := uint32(1); seq <= 9; seq++ {
			l.push(t, epoch, seq, 0, 1)
		}
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if n, _ := got.count(); n > 0 {
			t.Fatal("a harvest of 9 frames")
		}
		l.push(t, epoch, 10, 0, 1)
		time.Sleep(2 * countEvery)
		synctest.Wait()
		if _, frames := got.count(); frames != 10 {
			t.Errorf("harvests of %d frames, want 10", frames)
		}
		for seq := uint32(11); seq <= 20; seq++ {
			l.push(t, epoch, seq, 0, 1)
		}
		time.Sleep(2 * countEvery)
		synctest.Wait()
		if n, frames := got.count(); frames != 20 || n != 2 {
			t.Errorf("%d harvests of %d frames, want 2 of 20", n, frames)
		}
		time.Sleep(90 * time.Millisecond) // the first period would have ended
		synctest.Wait()
		if n, _ := got.count(); n != 2 {
			t.Error("the period does not begin anew with a harvest by count")
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		_ = stop()
		if n, _ := got.count(); n != 3 {
			t.Errorf("%d harvests, want 2 by count and 1 by time", n)
		}
		if st := l.stats(t).Jobs[0]; st.Senders != 1 || st.Harvests != 3 || st.HarvestFrames != 10 || st.HarvestPeriodUs != 100_000 || st.Counters["applied"] != 20 {
			t.Errorf("statistics %v", st)
		}
	})
}

// Sums of a lut job travel as the bits of a float32.
func TestHarvestOfLUT(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.Arithmetic, s.Exponent = pb.Arithmetic_ARITHMETIC_LUT, nil
	job := l.create(t, s)
	epoch := l.join(t)
	l.push(t, epoch, 1, 7, 1.5)
	l.push(t, epoch, 2, 7, 2)
	got := newSums()
	h, stop := harvester(t, job, got.apply)
	defer func() { _ = stop() }()
	if err := h.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	tables, err := lut.New(lut.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(tables.Add(math.Float32bits(1.5), math.Float32bits(2))); len(got.byRank) != 1 || got.byRank[7] != want {
		t.Errorf("sums %#x, want %#x at rank 7", got.byRank, want)
	}
}

// unwilling is a data plane whose banks temporarily cannot be swapped or cleared.
type unwilling struct {
	*aggregator.Model
	swaps, clears []error // of the next calls
}

func next(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	*errs = (*errs)[1:]
	return err
}

func (u *unwilling) Swap(job uint16) (*aggregator.Bank, error) {
	if err := next(&u.swaps); err != nil {
		return nil, err
	}
	return u.Model.Swap(job)
}

func (u *unwilling) Clear(b *aggregator.Bank) error {
	if err := next(&u.clears); err != nil {
		return err
	}
	return u.Model.Clear(b)
}

// A data plane that is too busy to swap or clear banks delays the harvest; nothing is lost,
// numbered wrongly, or applied twice.
func TestHarvestOfABusyPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &unwilling{swaps: []error{nil, aggregator.ErrBusy, aggregator.ErrBusy}, clears: []error{aggregator.ErrBusy, aggregator.ErrBusy}}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
		job := l.create(t, spec())
		epoch := l.join(t)
		got := newSums()
		h, stop := harvester(t, job, got.apply)
		for seq := uint32(1); seq <= 3; seq++ {
			l.push(t, epoch, seq, 1, 1)
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		_ = stop()
		if got.rank(1) != units(t, 3) || got.repeats != 0 {
			t.Errorf("sum %d with %d repeats, want %d without", got.rank(1), got.repeats, units(t, 3))
		}
		for i, n := range got.numbers {
			if n != uint64(i+1) {
				t.Fatalf("harvests are numbered %v", got.numbers)
			}
		}
		if len(plane.swaps)+len(plane.clears) != 0 {
			t.Error("the plane was not as busy as the test wants it")
		}
	})
}

// halting is a data plane whose first swap takes two calls.
type halting struct {
	*aggregator.Model
	meanwhile func() // between the two; nil after it
	bank      *aggregator.Bank
}

func (h *halting) Swap(job uint16) (*aggregator.Bank, error) {
	if meanwhile := h.meanwhile; meanwhile != nil {
		h.meanwhile = nil
		b, err := h.Model.Swap(job)
		if err != nil {
			return nil, err
		}
		h.bank = b
		meanwhile()
		return nil, aggregator.ErrBusy
	}
	if b := h.bank; b != nil {
		h.bank = nil
		return b, nil
	}
	return h.Model.Swap(job)
}

// Frames acknowledged while a swap waits for its second try are in the other bank. A harvest
// requested then includes them, although the next bank does not, and no further frame triggers a
// harvest.
func TestHarvestOfASwapThatTookTwoTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &halting{}
		l := startAggregator(t, func(c *AggregatorConfig) { plane.Model, c.Plane = c.Plane.(*aggregator.Model), plane })
		job := l.create(t, spec())
		epoch := l.join(t)
		got := newSums()
		h, stop := harvester(t, job, got.apply)
		l.push(t, epoch, 1, 1, 1)
		second := make(chan error, 1)
		plane.meanwhile = func() {
			l.push(t, epoch, 2, 1, 2)
			go func() { second <- h.Now(t.Context()) }()
			synctest.Wait()
		}
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		if want := units(t, 3); got.rank(1) != want {
			t.Errorf("sum %d after both harvests, want %d", got.rank(1), want)
		}
		_ = stop()
	})
}
