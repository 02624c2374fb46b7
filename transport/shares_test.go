// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/wire"
)

// sharedCluster is a cluster whose hot set is divided among some jobs, from testJob on, each in an
// epoch of its own.
func sharedCluster(t *testing.T, count int, o clusterOptions) (*testCluster, *share.Division) {
	f, o, shares := sharedFabric(t, count, o)
	return newCluster(t, f, o), shares
}

// sharedFabric is the network of a sharedCluster, with the options of its workers.
func sharedFabric(t *testing.T, count int, o clusterOptions) (fabric, clusterOptions, *share.Division) {
	hot := testHotSet(t)
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), count)
	if err != nil {
		t.Fatal(err)
	}
	f := memFabric(t, o)
	for share := 1; share < count; share++ {
		job := aggregator.JobConfig{ID: testJob + uint16(share), Epoch: testEpoch + uint16(share), Exp: o.unit(),
			Slots: shares.Slots(share)}
		if err := f.plane.AddJob(job); err != nil {
			t.Fatal(err)
		}
	}
	o.hot = hot
	o.tamper = func(cfg *WorkerConfig) {
		cfg.Shares = shares
		local := cfg.Link.Local()
		cfg.Jobs = []Share{{Job: testJob, Epoch: testEpoch}}
		for share := uint16(1); share < uint16(count); share++ {
			s := Share{Job: testJob + share, Epoch: testEpoch + share}
			cfg.Jobs = append(cfg.Jobs, s)
			if err := f.plane.AddSender(s.Job, aggregator.SenderConfig{ID: cfg.Sender, Epoch: s.Epoch, IP: local.IP,
				MAC: local.MAC, Port: local.Port}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return f, o, shares
}

// sharedSums returns all sums of the shares and the server, by key, and how many of the shares have
// some.
func (c *testCluster) sharedSums(shares *share.Division) (total map[uint64][]int64, used int) {
	all, used := c.sumsOfShares(shares)
	if err := c.server.Do(c.t.Context(), func() { total = c.ledger.total(c.hot, all) }); err != nil {
		c.t.Fatal(err)
	}
	return total, used
}

// sumsOfShares returns the sums of the shares, by rank, and how many of them have some.
func (c *testCluster) sumsOfShares(shares *share.Division) (all []int64, used int) {
	all = make([]int64, c.hot.Slots())
	for share := range shares.Len() {
		bank, err := c.plane.Swap(testJob + uint16(share))
		if err != nil {
			c.t.Fatal(err)
		}
		if slices.ContainsFunc(bank.Slots, func(units int64) bool { return units != 0 }) {
			used++
		}
		for local, units := range bank.Slots {
			if rank, ok := shares.Rank(share, uint32(local)); ok {
				all[rank] += units
			} else if units != 0 {
				c.t.Errorf("share %d has a sum beyond its slots, at %d", share, local)
			}
		}
	}
	return all, used
}

// checkHotFrames flushes a worker, and compares the numbers of its hot frames in all its flows with
// their count.
func checkHotFrames(t *testing.T, i int, w *Worker, flows uint64) {
	t.Helper()
	if err := w.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var next, unanswered uint32
	if err := w.Do(t.Context(), func() { next, unanswered = w.HotFrames() }); err != nil {
		t.Fatal(err)
	}
	stats, err := w.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if sent := uint64(next) - flows*wire.FirstSeq; next != unanswered || sent != stats.Hot.Sent || sent == 0 {
		t.Errorf("worker %d: %d hot frames by their numbers, %d to answer, %d counted", i, sent, next-unanswered,
			stats.Hot.Sent)
	}
}

// Each gradient goes to the share that has its part, and is added there once, whatever the network
// does.
func TestSharesGetEachGradientOnce(t *testing.T) {
	for _, layout := range []packer.Layout{packer.Dense, packer.LaneAligned} {
		c, shares := sharedCluster(t, 3, clusterOptions{workers: 2, layout: layout,
			faults: link.Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Seed: 3}})
		want := pushAll(deadline(t), t, c.workers, 7, 60, 200)
		for i, w := range c.workers {
			checkHotFrames(t, i, w, 3)
		}
		got, used := c.sharedSums(shares)
		if used != 3 {
			t.Errorf("%v: %d of 3 shares have sums", layout, used)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: sums (-want +got)\n%s", layout, diff)
		}
	}
}

// Shares beside several servers have flows of their own: a part or a row of another one would be
// lost, or at the wrong server.
func TestSharesBesideSeveralServers(t *testing.T) {
	for servers := 2; servers <= 3; servers++ {
		f, o, shares := sharedFabric(t, 3, clusterOptions{workers: 2, layout: packer.Dense})
		c, s := newSharded(t, func(testing.TB, clusterOptions) fabric { return f }, o, servers)
		want := pushAll(deadline(t), t, c.workers, 7, 60, 200)
		for i, w := range c.workers {
			checkHotFrames(t, i, w, 3)
		}
		hot, used := c.sumsOfShares(shares)
		if diff := cmp.Diff(want, s.total(t, c, hot)); diff != "" || used != 3 {
			t.Errorf("%d servers: %d of 3 shares have sums; (-want +got)\n%s", servers, used, diff)
		}
	}
}

// Shares may be at several aggregators, as jobs with the same number, and a worker may have none
// for a part.
func TestSharesAtSeveralAggregators(t *testing.T) {
	hot := testHotSet(t)
	plan := share.Plan{PartRows: share.PartRows(hot.Len(), 5), Shares: [][]uint32{{0, 2, 3}, {0, 1, 3}},
		To: []int{0, 1, 0, share.Cold, share.Cold}}
	shares, err := share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), plan)
	if err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	open := func(host int) link.Link { return network.open(fmt.Sprintf("10.0.0.%d:19522", host+10)) }
	f := modelFabric(t, open)
	other := modelFabric(t, func(int) link.Link { return open(50) })
	if err := other.plane.AddJob(aggregator.JobConfig{ID: testJob, Epoch: testEpoch + 1, Exp: clusterOptions{}.unit(),
		Slots: shares.Slots(1)}); err != nil {
		t.Fatal(err)
	}
	o := clusterOptions{workers: 2, hot: hot, faults: link.Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Seed: 3}}
	o.tamper = func(cfg *WorkerConfig) {
		local := cfg.Link.Local()
		cfg.Shares = shares
		cfg.Jobs = []Share{{Job: testJob, Epoch: testEpoch}, {Job: testJob, Epoch: testEpoch + 1, At: other.aggregator}}
		if err := other.plane.AddSender(testJob, aggregator.SenderConfig{ID: cfg.Sender, Epoch: testEpoch + 1, IP: local.IP,
			MAC: local.MAC, Port: local.Port}); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t, f, o)
	want := pushAll(deadline(t), t, c.workers, 7, 60, 200)
	for _, w := range c.workers {
		if err := w.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	all := make([]int64, hot.Slots())
	for i, plane := range []aggregator.Plane{f.plane, other.plane} {
		bank, err := plane.Swap(testJob)
		if err != nil {
			t.Fatal(err)
		}
		used := map[int]bool{}
		for local, units := range bank.Slots {
			if rank, ok := shares.Rank(i, uint32(local)); ok && units != 0 {
				all[rank] += units
				used[int(rank)/hot.Dim()/plan.PartRows] = true
			}
		}
		for part, to := range plan.To {
			if used[part] != (to == i) {
				t.Errorf("share %d has sums of part %d: %v", i, part, used[part])
			}
		}
	}
	var got map[uint64][]int64
	if err := c.server.Do(t.Context(), func() { got = c.ledger.total(hot, all) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sums (-want +got)\n%s", diff)
	}
}

// An answer belongs to the flow of its job: one of another share's, with the same number and from
// the same address, acknowledges nothing.
func TestAnswerOfAnotherShare(t *testing.T) {
	c, _ := sharedCluster(t, 2, clusterOptions{workers: 1})
	w := c.workers[0]
	err := w.Do(t.Context(), func() {
		first, second := w.flows[w.hotAt[0]], w.flows[w.hotAt[1]]
		if f := w.flowFrom(first.to, testJob); f != first {
			t.Errorf("an answer of job %d belongs to flow %v", testJob, f)
		}
		if f := w.flowFrom(first.to, testJob+1); f != second {
			t.Errorf("an answer of job %d belongs to flow %v", testJob+1, f)
		}
		if f := w.flowFrom(first.to, testJob+2); f != nil {
			t.Errorf("an answer of a foreign job belongs to flow %v", f)
		}
		if f := w.flowFrom(w.flows[flowCold].to, testJob+1); f != nil {
			t.Errorf("an answer of the server with the job of a share belongs to flow %v", f)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A refusal of a share names the key, which is not that of its local rank, and the job of the
// share.
func TestRefusalOfAShare(t *testing.T) {
	c, shares := sharedCluster(t, 2, clusterOptions{workers: 1, layout: packer.Dense})
	rank, ok := shares.Rank(1, uint32(shares.Slots(1))-1)
	if !ok {
		t.Fatal("the last rank of share 1 is unknown")
	}
	key := c.hot.Key(rank / testDim)
	grads := make([]float32, testDim)
	grads[rank%testDim] = 1 << 30 // beyond the range of a slot
	ticket, err := c.workers[0].Push(t.Context(), []uint64{key}, grads)
	if err != nil {
		t.Fatal(err)
	}
	var refused *PeerError
	if err := ticket.Wait(deadline(t)); !errors.As(err, &refused) || !refused.KeyKnown || refused.Key != key ||
		refused.Job != testJob+1 {
		t.Errorf("the refusal is %v, want one of key %d by job %d", err, key, testJob+1)
	}
}

// In a job without weights, a sum that a share refuses goes to the server, with the key of its
// local rank.
func TestOverflowOfAShareGoesToTheServer(t *testing.T) {
	const exp = -46
	hot := testHotSet(t)
	c, shares := sharedCluster(t, 2, clusterOptions{workers: 1, layout: packer.Dense, exp: exp})
	w := c.workers[0]
	if err := w.Do(t.Context(), func() { w.unrounded = true }); err != nil {
		t.Fatal(err)
	}
	rank, _ := shares.Rank(1, uint32(shares.Slots(1))-1)
	key, at := hot.Key(rank/testDim), rank%testDim
	grads := make([]float32, testDim)
	grads[at] = 1 << 16
	const pushes = 3 // two of them fit
	for range pushes {
		ticket, err := w.Push(t.Context(), []uint64{key}, grads)
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	var cold map[uint64][]int64
	if err := c.server.Do(t.Context(), func() { cold = c.ledger.total(c.hot) }); err != nil {
		t.Fatal(err)
	}
	if len(cold) != 1 || cold[key] == nil || cold[key][at] == 0 {
		t.Errorf("the server has %v, want a sum of key %d", cold, key)
	}
}

func TestBadSharesOfAWorker(t *testing.T) {
	hot := testHotSet(t)
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), 2)
	if err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	l := network.open("10.0.0.1:1")
	server, agg := network.open("10.0.0.2:1").Local(), network.open("10.0.0.3:1").Local()
	for name, c := range map[string]struct {
		change func(*WorkerConfig)
		refuse string
	}{
		"too few":    {func(c *WorkerConfig) { c.Jobs = nil }, "1 jobs for 2 shares"},
		"too many":   {func(c *WorkerConfig) { c.Jobs = append(c.Jobs, Share{Job: 9}) }, "3 jobs for 2 shares"},
		"no shares":  {func(c *WorkerConfig) { c.Shares = nil }, "2 jobs for 1 shares"},
		"twice":      {func(c *WorkerConfig) { c.Jobs[1].Job = c.Job }, "two shares have the job 5"},
		"a server's": {func(c *WorkerConfig) { c.Jobs[1].At = server }, "aggregator and parameter server have the same address"},
		"fetchadd":   {func(c *WorkerConfig) { c.Mode = aggregator.FetchAdd }, "2 shares in fetchadd mode: only combine has several"},
		"a log":      {func(c *WorkerConfig) { c.Replay = minReplay }, "Replay or NoAggregator with 2 shares"},
		"none":       {func(c *WorkerConfig) { c.NoAggregator = true }, "Replay or NoAggregator with 2 shares"},
	} {
		cfg := WorkerConfig{Link: l, Job: 5, HotSet: hot, Server: server, Aggregator: agg, Shares: shares,
			Jobs: []Share{{Job: 5}, {Job: 6}}}
		c.change(&cfg)
		if _, err := NewWorker(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%s: %v, want ErrConfig with %q", name, err, c.refuse)
		}
	}
}
