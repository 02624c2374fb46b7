// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// otherShares divides the hot set of a sharedCluster with three shares otherwise: its share 1
// stays, part 5 becomes cold, and shares 0 and 2 exchange some parts.
func otherShares(t *testing.T, hot *packer.HotSet) *share.Division {
	t.Helper()
	plan := share.Plan{PartRows: share.PartRows(hot.Len(), share.MaxParts), Shares: make([][]uint32, 3)}
	for part := range (hot.Len() + plan.PartRows - 1) / plan.PartRows {
		to := 0
		switch {
		case part%3 == 1:
		case part == 5:
			to = share.Cold
		case part%2 == 0:
			to = 1
		default:
			to = 2
		}
		if to != share.Cold {
			plan.Shares[to] = append(plan.Shares[to], uint32(part))
		}
		plan.To = append(plan.To, to)
	}
	s, err := share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), plan)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addShare adds the job of a share for all workers.
func (c *testCluster) addShare(id uint16, slots int) Share {
	c.t.Helper()
	s := Share{Job: id, Epoch: 100 + id, At: c.aggregator}
	if err := c.plane.AddJob(aggregator.JobConfig{ID: id, Epoch: s.Epoch, Exp: clusterOptions{}.unit(),
		Slots: slots}); err != nil {
		c.t.Fatal(err)
	}
	for _, w := range c.workers {
		local := w.cfg.Link.Local()
		if err := c.plane.AddSender(id, aggregator.SenderConfig{ID: w.cfg.Sender, Epoch: s.Epoch, IP: local.IP,
			MAC: local.MAC, Port: local.Port}); err != nil {
			c.t.Fatal(err)
		}
	}
	return s
}

// Shares are exchanged while workers push, and each gradient is added once: when Divide has
// returned, the jobs that it has left get nothing any more, and may be removed. Frames are counted
// as if there had been no change.
func TestDivideWhileWorkersPush(t *testing.T) {
	for _, layout := range []packer.Layout{packer.Dense, packer.LaneAligned} {
		c, first := sharedCluster(t, 3, clusterOptions{workers: 2, layout: layout,
			faults: link.Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Seed: 3}})
		second := otherShares(t, c.hot)
		all := make([]int64, c.hot.Slots())
		collect := func(job uint16, of *share.Division, index int) (used bool) {
			t.Helper()
			bank, err := c.plane.Swap(job)
			if err != nil {
				t.Fatal(err)
			}
			for local, units := range bank.Slots {
				if rank, ok := of.Rank(index, uint32(local)); ok && units != 0 {
					used = true
					all[rank] += units
				}
			}
			if err := c.plane.RemoveJob(job); err != nil {
				t.Fatal(err)
			}
			return used
		}
		kept := Share{Job: testJob + 1, Epoch: testEpoch + 1, At: c.aggregator}
		var pushing sync.WaitGroup
		var changed atomic.Bool
		want, ctx := newLedger(), deadline(t)
		pushing.Go(func() {
			for seed := uint64(7); !changed.Load() && ctx.Err() == nil; seed++ {
				for key, row := range pushAll(ctx, t, c.workers, seed, 20, 200) {
					for column, units := range row {
						want.add(key, column, units)
					}
				}
			}
		})
		sent := func() (frames uint64) {
			for _, w := range c.workers {
				s, err := w.Stats(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				frames += s.Hot.Sent
			}
			return frames
		}
		awaitPushes := func() {
			t.Helper()
			for before := sent(); sent() < before+50; {
				if ctx.Err() != nil {
					t.Fatal("workers push nothing")
				}
			}
		}
		change := func(to *share.Division, jobs []Share) {
			t.Helper()
			awaitPushes()
			var changing sync.WaitGroup
			for i, w := range c.workers {
				changing.Go(func() {
					if err := w.Divide(deadline(t), to, jobs); err != nil {
						t.Errorf("worker %d: %v", i, err)
					}
				})
			}
			changing.Wait()
		}
		jobs := []Share{kept, c.addShare(testJob+3, second.Slots(1)), c.addShare(testJob+4, second.Slots(2))}
		change(second, jobs)
		if !collect(testJob, first, 0) || !collect(testJob+2, first, 2) {
			t.Error("a share was not used before the change")
		}
		back := []Share{c.addShare(testJob, first.Slots(0)), kept, c.addShare(testJob+2, first.Slots(2))}
		change(first, back)
		awaitPushes()
		changed.Store(true)
		if !collect(testJob+3, second, 1) || !collect(testJob+4, second, 2) {
			t.Error("a share was not used after the change")
		}
		pushing.Wait()
		for i, w := range c.workers {
			checkHotFrames(t, i, w, 3+2+2)
		}
		for index, job := range []uint16{testJob, testJob + 1, testJob + 2} {
			if !collect(job, first, index) {
				t.Errorf("share %d was not used at the end", index)
			}
		}
		var got map[uint64][]int64
		if err := c.server.Do(t.Context(), func() { got = c.ledger.total(c.hot, all) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(withoutZeros(want.sums), got); diff != "" {
			t.Errorf("%v: sums (-want +got)\n%s", layout, diff)
		}
	}
}

// Keys that were prepared before a change go where the shares are after it, as do pushes that had
// waited.
func TestPreparedKeysFollowTheShares(t *testing.T) {
	c, _ := sharedCluster(t, 3, clusterOptions{workers: 1, layout: packer.Dense})
	w, second := c.workers[0], otherShares(t, c.hot)
	keys := make([]uint64, c.hot.Len())
	for i := range keys {
		keys[i] = c.hot.Key(uint32(i))
	}
	b, err := w.Prepare(keys)
	if err != nil {
		t.Fatal(err)
	}
	grads := slices.Repeat([]float32{1}, len(keys)*testDim)
	push := func() {
		t.Helper()
		ticket, err := b.Push(deadline(t), grads)
		if err == nil {
			err = ticket.Wait(deadline(t))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	push()
	jobs := []Share{{Job: testJob + 1, Epoch: testEpoch + 1, At: c.aggregator}, c.addShare(testJob+3, second.Slots(1)),
		c.addShare(testJob+4, second.Slots(2))}
	if err := w.Divide(deadline(t), second, jobs); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []uint16{testJob, testJob + 2} {
		if err := c.plane.RemoveJob(gone); err != nil {
			t.Fatal(err)
		}
	}
	push()
	push() // after the numbers of the rows that are cold now
	one := c.ledger.format.Exp
	for i, job := range jobs {
		bank, err := c.plane.Swap(job.Job)
		if err != nil {
			t.Fatal(err)
		}
		pushes := int64(2)
		if i == 0 { // it has the first push, too
			pushes = 3
		}
		for local := range uint32(second.Slots(i)) {
			if got := bank.Slots[local]; got != pushes<<-one {
				t.Fatalf("share %d has %d units at %d, want those of %d", i, got, local, pushes)
			}
		}
	}
	if err := c.server.Do(t.Context(), func() {
		for rank := 5 * share.PartRows(c.hot.Len(), share.MaxParts); rank < 6*share.PartRows(c.hot.Len(), share.MaxParts); rank++ {
			if got := c.ledger.sums[c.hot.Key(uint32(rank))]; !slices.Equal(got, []int64{2 << -one, 2 << -one, 2 << -one}) {
				t.Errorf("the server has %v of a row that has become cold", got)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// The exchange waits for the push that is in the packer, whose frames wait for answers; a change
// that is refused changes nothing, and another one has to wait.
func TestDivideBetweenPushes(t *testing.T) {
	c, _ := sharedCluster(t, 3, clusterOptions{workers: 1, layout: packer.Dense})
	w, second := c.workers[0], otherShares(t, c.hot)
	kept := Share{Job: testJob + 1, Epoch: testEpoch + 1, At: c.aggregator}
	jobs := []Share{kept, c.addShare(testJob+3, second.Slots(1)), c.addShare(testJob+4, second.Slots(2))}
	begun := &operation{begun: true}
	flows := func() (jobs []uint16) {
		for f := range w.hotFlows {
			jobs = append(jobs, f.job)
		}
		return jobs
	}
	ctx, cancel := context.WithCancel(t.Context())
	for name, r := range map[string]struct {
		change func(jobs []Share) (*share.Division, []Share)
		refuse string
	}{
		"no shares":     {func(j []Share) (*share.Division, []Share) { return nil, j }, "without shares"},
		"too few":       {func(j []Share) (*share.Division, []Share) { return second, j[:2] }, "2 jobs for 3 shares"},
		"another epoch": {func(j []Share) (*share.Division, []Share) { j[0].Epoch++; return second, j }, "has another share already"},
		"other parts": {func(j []Share) (*share.Division, []Share) {
			j[0], j[1] = j[1], j[0]
			return second, j
		}, "has another share already"},
		"a server's": {func(j []Share) (*share.Division, []Share) { j[1].At = w.cfg.Server; return second, j },
			"parameter server and aggregator have the same address"},
	} {
		to, list := r.change(slices.Clone(jobs))
		if err := w.Divide(ctx, to, list); err == nil || !strings.Contains(err.Error(), r.refuse) {
			t.Errorf("%s: %v, want %q", name, err, r.refuse)
		}
	}
	over := make(chan struct{})
	err := w.Do(t.Context(), func() {
		d := &division{shares: second, over: make(chan struct{})}
		for i, s := range jobs {
			f, err := w.newHotFlow(ctx, i, s.Job, Peer{s.At, s.Epoch}, second)
			if err != nil {
				t.Fatal(err)
			}
			d.flows = append(d.flows, f)
		}
		if err := w.prepareDivision(d); err != nil {
			t.Error(err)
		}
		if err := w.prepareDivision(d); !errors.Is(err, ErrMode) || !strings.Contains(err.Error(), "an earlier one") {
			t.Errorf("a change during another: %v", err)
		}
		go func() { <-d.over; close(over) }()
		w.pushes = append(w.pushes, begun)
		w.divide()
		if got, want := flows(), []uint16{testJob, testJob + 1, testJob + 2}; !slices.Equal(got, want) {
			t.Errorf("with a push in frames the flows are of jobs %v, want %v", got, want)
		}
		w.pushes = nil
		w.divide()
		if got, want := flows(), []uint16{testJob + 1, testJob + 3, testJob + 4}; !slices.Equal(got, want) {
			t.Errorf("the flows are of jobs %v, want %v", got, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	<-over
	cancel()
}
