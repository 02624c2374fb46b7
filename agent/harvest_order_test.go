// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/test/testlog"
)

// gate is a recording that stops the worker's goroutine at each push until it is opened.
type gate struct{ came, goOn chan struct{} }

func (g gate) Push([]uint64, []float32) {
	g.came <- struct{}{}
	<-g.goOn
}
func (gate) EndStep() {}
func (gate) Close()   {}

// newGate makes a change of a job of which the first client passes through the gate.
func newGate() (gate, func(*agent.Config, *agent.Job)) {
	g := gate{make(chan struct{}), make(chan struct{})}
	return g, func(_ *agent.Config, j *agent.Job) { j.Record = func(int, string) agent.Recording { return g } }
}

// An entry that is answered in another goroutine is completed after the client sees that it is
// read: sq_head counts it, although the worker has not come to the end of its turn.
func TestCompletedEntriesAreRead(t *testing.T) {
	g, record := newGate()
	b, _ := newRangeBed(t, time.Hour, record)
	c := b.dial(own(true))
	ctx := within(t)
	keys, grads := batch(1, 3)
	push := func() {
		t.Helper()
		if _, err := c.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	push()
	<-g.came
	for name, e := range map[string]agentproto.Entry{
		"HARVEST": {Op: agentproto.Harvest, Step: agentproto.Now},
		"SUMS":    {Op: agentproto.Sums, Dim: dim},
	} {
		ticket, err := c.Submit(ctx, e)
		must(t, err)
		push()
		g.goOn <- struct{}{} // the worker takes both in one turn, and stops at the second
		<-g.came
		got := doneWith(t, c, ticket)
		if read := c.Memory().SQHead.Load(); read != uint32(ticket)+1 {
			t.Errorf("%s: entry %d is completed, %+v, and sq_head is %d", name, ticket, got, read)
		}
	}
	g.goOn <- struct{}{}
	must(t, c.Flush(ctx))
}

// A HARVEST that does not wait wakes one that has begun to wait.
func TestHarvestNowWakesTheOneBefore(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	c := b.dial(own(true))
	doneWith(t, c, askFor(t, c, false, 0)) // the first does not wait
	for range 10 {
		waits := askFor(t, c, false, 0)
		for c.Memory().SQHead.Load() != uint32(waits)+1 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond) // it is likely to wait by now
		now := askFor(t, c, true, 0)
		for _, ticket := range []uint64{waits, now} {
			if got := doneWith(t, c, ticket); got.Status != agentproto.OK {
				t.Fatalf("entry %d: %+v", ticket, got)
			}
		}
	}
	if takes, _ := o.count(); takes != 21 {
		t.Errorf("%d harvests for 21 entries", takes)
	}
}

// An owner is told that its job has lost the aggregator, which is not the end of the job by its
// owner.
func TestHarvestOfALostAggregator(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	c := b.dial(own(true))
	o.set(func() {
		o.fail = errors.New("the stream has ended")
		o.lost = fmt.Errorf("%w: it was restarted", agentproto.AggregatorLost)
	})
	if got := doneWith(t, c, askFor(t, c, true, 0)); got.Status != agentproto.AggregatorLost {
		t.Errorf("the harvest: %+v", got)
	}
	other := b.dial(own(false))
	_ = c.Close()
	err := other.Flush(within(t))
	for err == nil {
		err = other.Flush(within(t))
	}
	if !errors.Is(err, agentproto.AggregatorLost) || !strings.Contains(err.Error(), "it was restarted") {
		t.Errorf("the session of another client ended with %v", err)
	}
}

// An operator reads why a job could not be left or removed, and another client may own the job
// then. That the owner's session has ended, while it waits for a harvest, is no failure of the
// harvests.
func TestFailuresAfterTheOwner(t *testing.T) {
	var log testlog.Log
	b, o := newRangeBed(t, time.Hour, func(c *agent.Config, _ *agent.Job) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	c := b.dial(own(true))
	waits := make(chan struct{})
	o.set(func() { o.waits, o.remove = waits, errors.New("the switch is away") })
	askFor(t, c, true, 0)
	<-waits
	_ = c.Close()
	// The bed's worker has one life, so that the host cannot join the next one.
	var err error
	for ctx, refused := within(t), true; refused && ctx.Err() == nil; { // until the agent sees that the owner has gone
		_, err = agentclient.Dial(ctx, b.socket, agentproto.Hello{Job: "hot/0", Owner: true, Features: agentproto.FeatureHarvest})
		refused = errors.Is(err, agentproto.Owned)
	}
	if !errors.Is(err, agentproto.JobEnded) {
		t.Errorf("the next owner: %v", err)
	}
	for ctx := within(t); !strings.Contains(log.String(), "a job was not removed") && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
	text := log.String()
	if n := strings.Count(text, "a job was not removed"); n != 1 || !strings.Contains(text, "the switch is away") {
		t.Errorf("the failure was told %d times:\n%s", n, text)
	}
	if strings.Contains(text, "cannot be harvested") {
		t.Errorf("the end of a session counts as a failure of the harvests:\n%s", text)
	}
}
