// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer/share"
)

// No push waits for a change of the plan: while an aggregator that a worker leaves answers nothing, so that the change
// cannot end, pushes to the shares of the new plan are acknowledged.
func TestNoPushWaitsForAChange(t *testing.T) {
	hot := testHotSet(t)
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), 2)
	if err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	open := func(host int) link.Link { return network.open(fmt.Sprintf("10.0.0.%d:19522", host+10)) }
	f := modelFabric(t, open)
	left := modelFabric(t, func(int) link.Link { return open(50) })
	if err := left.plane.AddJob(aggregator.JobConfig{ID: testJob, Epoch: testEpoch + 1, Exp: clusterOptions{}.unit(),
		Slots: shares.Slots(1)}); err != nil {
		t.Fatal(err)
	}
	o := clusterOptions{workers: 1, hot: hot}
	o.tamper = func(cfg *WorkerConfig) {
		local := cfg.Link.Local()
		cfg.Shares = shares
		cfg.Jobs = []Share{{Job: testJob, Epoch: testEpoch}, {Job: testJob, Epoch: testEpoch + 1, At: left.aggregator}}
		if err := left.plane.AddSender(testJob, aggregator.SenderConfig{ID: cfg.Sender, Epoch: testEpoch + 1, IP: local.IP,
			MAC: local.MAC, Port: local.Port}); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t, f, o)
	w := c.workers[0]
	keys := make([]uint64, hot.Len())
	for i := range keys {
		keys[i] = hot.Key(uint32(i))
	}
	batch, err := w.Prepare(keys)
	if err != nil {
		t.Fatal(err)
	}
	push := func() *Ticket {
		t.Helper()
		ticket, err := batch.Push(deadline(t), slices.Repeat([]float32{1}, len(keys)*testDim))
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	wait := func(ticket *Ticket) {
		t.Helper()
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for ctx, seen := deadline(t), false; !seen; {
			if err := w.Do(ctx, func() { seen = is() }); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	wait(push())
	answers := network.silence(left.aggregator.IP)
	unanswered := push()
	await("the push is in frames", func() bool { return len(w.pushes) == 0 })
	jobs := []Share{{Job: testJob, Epoch: testEpoch, At: c.aggregator}, c.addShare(testJob+3, shares.Slots(1))}
	changed := make(chan error, 1)
	go func() { changed <- w.Divide(deadline(t), shares, jobs) }()
	await("the table is exchanged", func() bool {
		for flow := range w.hotFlows {
			if flow.job == testJob+3 {
				return true
			}
		}
		return false
	})
	const during = 60
	for range during {
		wait(push())
	}
	select {
	case err := <-changed:
		t.Fatalf("the change ends with %v, and the aggregator that is left has not answered", err)
	default:
	}
	answers()
	if err := <-changed; err != nil {
		t.Error(err)
	}
	wait(unanswered)
	units := int64(1) << -c.ledger.format.Exp
	for _, s := range []struct {
		plane  aggregator.Plane
		job    uint16
		share  int
		pushes int64
	}{{c.plane, testJob, 0, 2 + during}, {left.plane, testJob, 1, 2}, {c.plane, testJob + 3, 1, during}} {
		bank, err := s.plane.Swap(s.job)
		if err != nil {
			t.Fatal(err)
		}
		for local, got := range bank.Slots[:shares.Slots(s.share)] {
			if got != s.pushes*units {
				t.Fatalf("job %d, share %d has %d units at %d, want those of %d pushes", s.job, s.share, got, local, s.pushes)
			}
		}
	}
}
