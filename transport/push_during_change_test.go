// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer/share"
)

// atOnce is more than frames on a network in memory take, and less than any timeout of a sender.
const atOnce = 500 * time.Microsecond

// ticking is a link in virtual time: each time that it has nothing to receive takes a microsecond,
// so that those who poll it come to an end.
type ticking struct{ link.Link }

func (l ticking) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	if n == 0 && err == nil {
		time.Sleep(time.Microsecond)
	}
	return n, err
}

// No push waits for a change of the plan, in virtual time: while an aggregator that a worker leaves
// answers nothing for six seconds, so that the change cannot end, each push to the shares of the
// new plan is acknowledged at once.
func TestNoPushWaitsForAChange(t *testing.T) { synctest.Test(t, testNoPushWaitsForAChange) }

func testNoPushWaitsForAChange(t *testing.T) {
	hot := testHotSet(t)
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), 2)
	if err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	open := func(host int) link.Link { return ticking{network.open(fmt.Sprintf("10.0.0.%d:19522", host+10))} }
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
	wait(push())
	answers := network.silence(left.aggregator.IP)
	unanswered := push()
	time.Sleep(atOnce) // it is in frames
	jobs := []Share{{Job: testJob, Epoch: testEpoch, At: c.aggregator}, c.addShare(testJob+3, shares.Slots(1))}
	changed := make(chan error, 1)
	go func() { changed <- w.Divide(deadline(t), shares, jobs) }()
	time.Sleep(atOnce) // the table is exchanged
	const during = 60
	for range during {
		begun := time.Now()
		wait(push())
		if took := time.Since(begun); took > atOnce {
			t.Fatalf("a push during the change takes %v", took)
		}
		time.Sleep(100 * time.Millisecond)
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
