// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/ps"
)

// turns returns when the agent has looked at the entries of all clients at least once.
func (b *bed) turns() {
	b.t.Helper()
	turns(b.t, b.socket)
}

func turns(t testing.TB, socket string) {
	t.Helper()
	observer, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Entries: 8, BufferBytes: 4096})
	must(t, err)
	for range 2 { // of the first answer, the turn may have begun before the client's entry was there
		_, err := observer.Stats(within(t))
		must(t, err)
	}
	must(t, observer.Close())
}

// meeting is the end of a job's steps at its server: it waits for the other hosts.
type meeting struct {
	b       *bed
	entered chan uint64 // the steps that this host has reached
	others  chan error  // how each ends: nil is with its sums
}

var errDrops = errors.New("another host drops the step")

func newMeeting(t *testing.T) *meeting {
	t.Helper()
	m := &meeting{entered: make(chan uint64, 8), others: make(chan error, 8)}
	m.b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(ctx context.Context, step uint64) error {
			_, err := m.reduce(ctx, step, agent.Arrival{})
			return err
		}
		c.Jobs[0].Reduce = m.reduce
	})
	return m
}

func (m *meeting) reduce(ctx context.Context, step uint64, a agent.Arrival) (sums agent.Sums, err error) {
	m.entered <- step
	select {
	case err = <-m.others:
	case <-ctx.Done():
		return sums, ctx.Err()
	}
	switch {
	case err != nil && !errors.Is(err, errDrops):
		return sums, err
	case err != nil || a.Refused != nil:
		if err := m.b.cluster.Drop(ctx); err != nil {
			return sums, err
		}
		if a.Refused == nil {
			return sums, &agent.DroppedError{}
		}
		return sums, a.Refused
	}
	sums.Keys, sums.Rows, err = m.b.cluster.Reduce(ctx)
	return sums, err
}

// submit begins to end a step.
func submit(t *testing.T, c *agentclient.Client, op agentproto.Op, step uint64) (ticket uint64) {
	t.Helper()
	ticket, err := c.Submit(within(t), agentproto.Entry{Op: op, Step: step})
	must(t, err)
	return ticket
}

// ends waits for the end of a step that submit has begun.
func ends(t *testing.T, c *agentclient.Client, ticket uint64, want agentproto.Code) {
	t.Helper()
	if got, err := c.Wait(within(t), ticket); err != nil || got.Status != want {
		t.Errorf("the end of a step: %+v, %v, want %v", got, err, want)
	}
}

// sumsOf reduces a step and returns the first float of the rows of the hot key 1 and the cold one
// 1000.
func (m *meeting) sumsOf(c *agentclient.Client, step uint64) (hot, cold float32) {
	m.b.t.Helper()
	m.others <- nil
	keys, sums, err := c.Reduce(within(m.b.t), step)
	if err != nil {
		m.b.t.Errorf("step %d: %v", step, err)
	}
	<-m.entered
	for i, key := range keys {
		if key == 1 {
			hot = sums[dim*i]
		} else {
			cold = sums[dim*i]
		}
	}
	return hot, cold
}

func pushBoth(t *testing.T, c *agentclient.Client, g float32) {
	t.Helper()
	_, err := c.Push(within(t), []uint64{1, 1000}, []float32{g, g, g, g})
	must(t, err)
}

// A push after a party's BARRIER or REDUCE belongs to the next step, exactly, also if the step
// before is dropped. If its party ends meanwhile, nothing of the push is applied, and no step is
// dropped.
func TestPushAfterTheEndOfAStep(t *testing.T) {
	for name, c := range map[string]struct {
		op      agentproto.Op
		batch   bool // a prepared one
		ends    bool // the party, before the step
		outcome error
	}{
		"reduce":                      {op: agentproto.Reduce},
		"barrier":                     {op: agentproto.Barrier},
		"prepared":                    {op: agentproto.Reduce, batch: true},
		"reduce, dropped":             {op: agentproto.Reduce, outcome: errDrops},
		"barrier, dropped":            {op: agentproto.Barrier, outcome: errDrops},
		"reduce, the party ends":      {op: agentproto.Reduce, ends: true},
		"barrier, the party ends":     {op: agentproto.Barrier, ends: true},
		"dropped, and the party ends": {op: agentproto.Reduce, ends: true, outcome: errDrops},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMeeting(t)
			one, two := m.b.dial(party(2)), m.b.dial(party(2))
			pushBoth(t, one, 1)
			pushBoth(t, two, 1)
			var handle uint64
			if c.batch {
				var err error
				handle, err = two.Prepare(within(t), []uint64{1, 1000})
				must(t, err)
			}
			first, second := submit(t, one, agentproto.Reduce, 0), submit(t, two, c.op, 0)
			if step := <-m.entered; step != 0 {
				t.Fatalf("step %d", step)
			}
			if c.batch {
				_, err := two.PushPrepared(within(t), handle, 2, []float32{100, 100, 100, 100})
				must(t, err)
			} else {
				pushBoth(t, two, 100)
			}
			m.b.turns()
			if c.ends {
				must(t, two.Close())
			}
			m.others <- c.outcome
			want := agentproto.OK
			if c.outcome != nil {
				want = agentproto.Dropped
			}
			ends(t, one, first, want)
			if want == agentproto.OK {
				keys, sums := make([]uint64, 2), make([]float32, 2*dim)
				must(t, one.Sums(within(t), 0, keys, sums))
				if !slices.Equal(keys, []uint64{1, 1000}) || !slices.Equal(sums, []float32{2, 2, 2, 2}) {
					t.Errorf("the sums of step 0 are %v of %v, want 2", sums, keys)
				}
			}
			after := float32(0)
			if c.ends {
				must(t, one.Close())
				m.b.idle(0)
				one = m.b.dial(party(1))
			} else {
				after = 100
				ends(t, two, second, want)
				must(t, two.Flush(within(t))) // it waits for the push
				submit(t, two, agentproto.Barrier, 1)
			}
			if hot, cold := m.sumsOf(one, 1); hot != after || cold != after {
				t.Errorf("the sums of step 1 are %v and %v, want %v", hot, cold, after)
			}
		})
	}
}

// A client may put several steps into its ring at once: each push is in its own step.
func TestStepsInOneRing(t *testing.T) {
	m := newMeeting(t)
	c := m.b.dial(party(1))
	const steps = 4
	var tickets []uint64
	for step := range uint64(steps) {
		pushBoth(t, c, float32(step+1))
		op := agentproto.Barrier
		if step == steps-1 {
			op = agentproto.Reduce
		}
		tickets = append(tickets, submit(t, c, op, step))
		m.others <- nil
	}
	pushBoth(t, c, 100)
	for _, ticket := range tickets {
		ends(t, c, ticket, agentproto.OK)
	}
	keys, sums := make([]uint64, 2), make([]float32, 2*dim)
	must(t, c.Sums(within(t), 0, keys, sums))
	if sums[0] != steps || sums[dim] != steps {
		t.Errorf("the sums of the last step are %v, want %d", sums, steps)
	}
	must(t, c.Flush(within(t)))
	for range steps {
		<-m.entered
	}
	if hot, cold := m.sumsOf(c, steps); hot != 100 || cold != 100 {
		t.Errorf("the step after them has %v and %v", hot, cold)
	}
}

// Two parties end steps in any mixture of operations, ahead of each other: the sums of a step are
// those of its pushes.
func TestStepsOfPartiesAhead(t *testing.T) {
	const steps, parties = 60, 2
	m := newMeeting(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-m.entered:
				m.others <- nil
			case <-stop:
				return
			}
		}
	})
	var group sync.WaitGroup
	clients := [parties]*agentclient.Client{m.b.dial(party(parties)), m.b.dial(party(parties))}
	for i, c := range clients {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		group.Go(func() {
			var onWay []uint64 // tickets of ends of steps
			finish := func() {
				if got, err := c.Wait(within(t), onWay[0]); err != nil || got.Status != agentproto.OK {
					t.Errorf("%+v, %v", got, err)
				}
				onWay = onWay[1:]
			}
			for step := range uint64(steps) {
				for range random.IntN(3) + 1 { // each adds up to 2^step's position
					if _, err := c.Push(within(t), []uint64{1, 1000 + step}, []float32{0.5, 0.5, 1, 1}); err != nil {
						t.Error(err)
					}
				}
				if _, err := c.Push(within(t), []uint64{2000}, []float32{float32(step), 1}); err != nil {
					t.Error(err)
				}
				if random.IntN(2) == 0 {
					for len(onWay) > 0 {
						finish()
					}
					keys, sums, err := c.Reduce(within(t), step)
					if err != nil {
						t.Errorf("step %d: %v", step, err)
						return
					}
					at := slices.Index(keys, 2000)
					if at < 0 || sums[dim*at] != float32(parties*step) || sums[dim*at+1] != parties ||
						len(keys) != 3 || keys[1] != 1000+step || sums[0] != sums[dim]/2 {
						t.Errorf("the sums of step %d are %v of %v", step, sums, keys)
					}
					continue
				}
				ticket, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier, Step: step})
				if err != nil {
					t.Error(err)
				}
				if onWay = append(onWay, ticket); len(onWay) > 3 {
					finish()
				}
			}
			for len(onWay) > 0 {
				finish()
			}
		})
	}
	group.Wait()
	close(stop)
	others.Wait()
}

// If the host cannot meet the others, the step is still due. A push that comes then would be in the
// wrong step, so that it tears that step, and the next one is as usual. A retry without such a push
// has the sums.
func TestPushAfterAFailedEnd(t *testing.T) {
	fails := errors.New("no server")
	for _, pushes := range []bool{false, true} {
		m := newMeeting(t)
		c := m.b.dial(party(1))
		pushBoth(t, c, 1)
		ticket := submit(t, c, agentproto.Reduce, 0)
		<-m.entered
		if pushes {
			pushBoth(t, c, 100)
			m.b.turns()
		}
		m.others <- fails
		ends(t, c, ticket, agentproto.Refused)
		must(t, c.Flush(within(t)))
		if pushes {
			m.others <- nil
			if _, _, err := c.Reduce(within(t), 0); !errors.Is(err, agentproto.Dropped) {
				t.Errorf("the step again, after a push of the next one: %v", err)
			}
			<-m.entered
		} else if hot, cold := m.sumsOf(c, 0); hot != 1 || cold != 1 {
			t.Errorf("the step again has %v and %v", hot, cold)
		}
		pushBoth(t, c, 7)
		if hot, cold := m.sumsOf(c, 1); hot != 7 || cold != 7 {
			t.Errorf("the next step has %v and %v", hot, cold)
		}
	}
}

// If the host's part in the job has ended, other hosts may still end the step, with what this one
// had pushed before. So a push that waits is not sent: it would be in that step.
func TestPushAfterTheHostsEnd(t *testing.T) {
	m := newMeeting(t)
	c := m.b.dial(party(1))
	pushBoth(t, c, 1)
	ticket := submit(t, c, agentproto.Reduce, 0)
	<-m.entered
	accepted := c.Memory().SQHead.Load()
	pushBoth(t, c, 100)
	m.others <- fmt.Errorf("%w: the switch is stopping", agentproto.JobEnded)
	ends(t, c, ticket, agentproto.JobEnded)
	m.b.turns()
	if head := c.Memory().SQHead.Load(); head != accepted {
		t.Errorf("%d entries are accepted, want %d", head, accepted)
	}
}

// A step that was torn by a party's death is dropped, and not committed in silence, also if the
// next parties end it by a BARRIER.
func TestTornStepIsDroppedByABarrier(t *testing.T) {
	for _, waits := range []bool{false, true} { // the one that stays, at its BARRIER
		m := newMeeting(t)
		one, two := m.b.dial(party(2)), m.b.dial(party(2))
		pushBoth(t, one, 1)
		must(t, one.Flush(within(t)))
		if waits {
			submit(t, one, agentproto.Barrier, 0)
		}
		_ = two.Close()
		_ = one.Close()
		m.b.idle(0)
		one, two = m.b.dial(party(2)), m.b.dial(party(2))
		pushBoth(t, one, 1)
		first, second := submit(t, one, agentproto.Barrier, 0), submit(t, two, agentproto.Barrier, 0)
		m.others <- nil
		ends(t, one, first, agentproto.Dropped)
		ends(t, two, second, agentproto.Dropped)
		<-m.entered
		pushBoth(t, one, 7)
		submit(t, two, agentproto.Barrier, 1)
		if hot, cold := m.sumsOf(one, 1); hot != 7 || cold != 7 {
			t.Errorf("the next step has %v and %v", hot, cold)
		}
	}
}

// A PUSH_SUMS after a BARRIER waits for its end, too. If its party ends, or the agent, it is not
// applied.
func TestPushSumsAfterABarrier(t *testing.T) {
	w, hot := fetchAdd(t)
	socket := filepath.Join(shortDir(t), "agent.sock")
	entered, others := make(chan struct{}), make(chan struct{})
	serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{
		Name: jobName, Worker: w, HotSet: hot, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp,
		Barrier: func(ctx context.Context, _ uint64) error {
			entered <- struct{}{}
			select {
			case <-others:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}}})
	dial := func() *agentclient.Client {
		t.Helper()
		c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Parties: 1})
		must(t, err)
		return c
	}
	pushSums := func(c *agentclient.Client) {
		t.Helper()
		keys, sums := c.Memory().Keys(0, 1), c.Memory().Floats(8, dim)
		keys[0], sums[0], sums[1] = 5, 100, 100
		_, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.PushSums, Dim: dim, Values: 8, Sums: 8, N: 1})
		must(t, err)
		turns(t, socket)
	}
	c := dial()
	submit(t, c, agentproto.Barrier, 0)
	<-entered
	pushSums(c)
	if head := c.Memory().SQHead.Load(); head != 1 {
		t.Errorf("%d entries are read, want 1", head)
	}
	_ = c.Close()
	others <- struct{}{}
	for c = nil; c == nil; { // the host still waits, for a moment
		c, _ = agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Parties: 1})
	}
	defer c.Close()
	if c.Welcome().NextStep != 1 {
		t.Errorf("step %d is next", c.Welcome().NextStep)
	}
	grads := []float32{1, 2}
	must(t, c.PushSums(within(t), []uint64{5}, grads))
	if !slices.Equal(grads, []float32{1, 2}) {
		t.Errorf("the sums are %v, as if a push had been applied that was not accepted", grads)
	}
}

// An agent that ends does not apply pushes that wait for the end of a step, and says which step is
// torn.
func TestAgentEndsWithPushesThatWait(t *testing.T) {
	for _, pushed := range []bool{false, true} { // in the step
		m := newMeeting(t)
		c := m.b.dial(party(1))
		if pushed {
			pushBoth(t, c, 1)
		}
		submit(t, c, agentproto.Reduce, 0)
		<-m.entered
		pushBoth(t, c, 100)
		m.b.turns()
		must(t, m.b.agent.Close())
		if step, torn := m.b.agent.OpenStep(jobName); step != 0 || torn != pushed {
			t.Errorf("pushed %v: step %d is open, and torn: %v", pushed, step, torn)
		}
		if err := c.Barrier(within(t), 0); !errors.Is(err, agentproto.AgentClosed) {
			t.Errorf("the client is told %v", err)
		}
		_, sums, err := m.b.cluster.Reduce(within(t))
		must(t, err)
		if want := float32(1); pushed && sums[0] != want || !pushed && len(sums) != 0 {
			t.Errorf("pushed %v: the open step has %v", pushed, sums)
		}
	}
}
