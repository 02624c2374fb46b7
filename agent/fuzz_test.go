// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

var hostileTime = flag.Duration("hostile", 2*time.Second, "how long clients at random attack the agent")

// attacker is a client that writes anything anywhere.
type attacker struct {
	*agentclient.Client
	rng   *rand.Rand
	step  uint64 // the step that is due
	party bool   // in most entries it ends steps
}

// words are random keys that no correct client has, and as pairs of gradients small enough that
// their sums stay in range: frames with several clients' pairs are refused as a whole.
func (a *attacker) word() uint64 {
	small := func() uint64 { return uint64(math.Float32bits(float32(a.rng.Float64()+1) / (1 << 20))) }
	return small()<<32 | small()
}

// number returns a number that is often near a limit.
func (a *attacker) number() uint64 {
	limits := []uint64{0, 1, 8, 64, 16 << 10, 64 << 10, 1 << 31, 1 << 32, 1 << 63, math.MaxUint64}
	switch a.rng.IntN(4) {
	case 0:
		return a.rng.Uint64()
	case 1:
		return a.rng.Uint64N(64<<10) &^ 7
	default:
		return limits[a.rng.IntN(len(limits))] + a.rng.Uint64N(17) - 8
	}
}

// attackedBytes is the size of an attacker's buffer area, to whose end only statistics are written.
const attackedBytes, statistics = 64 << 10, 63 << 10

// entry returns an entry that is often correct. Statistics are small numbers, which as keys would
// be those of correct clients.
func (a *attacker) entry() agentproto.Entry {
	e := a.anyEntry()
	if e.Op == agentproto.Stats && e.Values < attackedBytes {
		e.Values = statistics
	}
	if e.Keys < attackedBytes && e.Keys+8*uint64(e.N) > statistics {
		e.Keys, e.N = e.Keys%(statistics/2)&^7, e.N%1000
	}
	return e
}

func (a *attacker) anyEntry() agentproto.Entry {
	e := agentproto.Entry{Op: agentproto.Op(1 + a.rng.IntN(10)), Tag: a.rng.Uint64()}
	if a.party && a.rng.IntN(2) == 0 {
		e.Op = agentproto.Reduce
	}
	if e.Op.HasRows() {
		e.Dim, e.N = dim, a.rng.Uint32N(200)
		e.Keys, e.Values = 8*a.rng.Uint64N(1000), 8*a.rng.Uint64N(1000)
	}
	switch e.Op {
	case agentproto.Barrier, agentproto.Reduce:
		e.Step = a.step + a.rng.Uint64N(2)
		a.step += a.rng.Uint64N(2)
	case agentproto.Sums:
		e.Step = a.rng.Uint64N(200)
	}
	if e.Op == agentproto.Reduce && a.rng.IntN(2) == 0 {
		e.Dim, e.N, e.Keys, e.Values = 0, 0, 0, 0
	}
	if e.Op == agentproto.Prepare {
		e.N = a.rng.Uint32N(200)
	}
	if a.rng.IntN(8) > 0 {
		return e
	}
	switch a.rng.IntN(6) {
	case 0:
		e.Keys = a.number()
	case 1:
		e.Values = a.number()
	case 2:
		e.N = uint32(a.number())
	case 3:
		e.Dim = uint32(a.number())
	case 4:
		e.Batch = a.number()
	case 5:
		e.Op = agentproto.Op(a.rng.Uint32())
	}
	return e
}

// act does something valid or invalid.
func (a *attacker) act() {
	m := a.Memory()
	what := a.rng.IntN(24)
	if a.party && a.rng.IntN(8) > 0 {
		what = 24
	}
	switch what {
	case 0:
		m.SQTail.Add(a.rng.Uint32N(40) - 10)
	case 1:
		m.CQHead.Add(a.rng.Uint32N(8) - 2)
	case 2:
		m.SQHead.Store(a.rng.Uint32())
		m.CQTail.Store(a.rng.Uint32())
	case 3:
		m.AgentSleeps.Store(a.rng.Uint32N(3))
		m.ClientSleeps.Store(a.rng.Uint32N(3))
	case 4:
		for i := range m.Entry(0) { // while the agent may read it
			m.Entry(a.rng.Uint32())[i] = byte(a.rng.Uint32())
		}
	case 5:
		for range a.rng.IntN(60) {
			a.Wake()
		}
	case 6, 7, 8, 9:
		words := m.Words(0, attackedBytes/8)
		for range 500 {
			words[a.rng.IntN(len(words))] = a.word()
		}
	default:
		e := a.entry()
		e.Put(m.Entry(m.SQTail.Load()))
		m.SQTail.Add(1)
		if a.rng.IntN(4) > 0 {
			m.CQHead.Store(m.CQTail.Load())
		}
		a.Wake()
	}
}

// Clients attack the agent at random, several at a time, one after the other, along with two
// correct ones. Those are not affected and their sums are exact; the others leave nothing behind.
// Run it longer with -args -hostile 5m.
func TestRandomAttacks(t *testing.T) {
	const attackers, honest = 3, 2
	var reduced atomic.Uint64
	sums := agent.Sums{Keys: make([]uint64, 1000), Rows: make([]float32, 1000*dim)}
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { return nil }
		c.Jobs[0].Reduce = func(_ context.Context, step uint64, a agent.Arrival) (agent.Sums, error) {
			if reduced.Add(1); a.Refused != nil {
				return agent.Sums{}, a.Refused
			}
			return agent.Sums{Keys: sums.Keys[:step%1000], Rows: sums.Rows[:step%1000*dim]}, nil
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), *hostileTime+2*time.Minute)
	defer cancel()
	var stop atomic.Bool
	var group sync.WaitGroup
	keys := make([][]uint64, honest)
	grads := make([][]float32, honest)
	pushes := make([]int, honest)
	for i := range honest {
		for key := range uint64(40) {
			keys[i] = append(keys[i], 1+key, 20_000+100*uint64(i)+key) // hot ones and cold ones
		}
		for n := range len(keys[i]) * dim {
			grads[i] = append(grads[i], float32(n%7-3)/1024)
		}
		c := b.dial()
		group.Go(func() {
			for !stop.Load() {
				if _, err := c.Push(ctx, keys[i], grads[i]); err != nil {
					t.Errorf("correct client %d: %v", i, err)
					return
				}
				if pushes[i]++; pushes[i]%100 == 0 { // so that the sums stay in range
					time.Sleep(time.Millisecond)
				}
			}
			if err := c.Flush(ctx); err != nil {
				t.Errorf("correct client %d: %v", i, err)
			}
		})
	}
	var sessions atomic.Uint64
	for seed := range uint64(attackers) {
		rng := rand.New(rand.NewPCG(seed, 15))
		group.Go(func() {
			// The one that takes part in steps continues until it has reduced, however slow the
			// machine is.
			for end := time.Now().Add(*hostileTime); time.Now().Before(end) || seed == 0 && reduced.Load() == 0; {
				hello := agentproto.Hello{Job: jobName, Entries: 16, BufferBytes: attackedBytes}
				if seed == 0 {
					hello.Parties = 1 // it takes part in steps, alone
				}
				c, err := agentclient.Dial(ctx, b.socket, hello)
				if errors.Is(err, agentproto.Parties) { // the previous one is still at the end of a step
					continue
				}
				if err != nil {
					t.Errorf("an attacker is not admitted: %v", err)
					return
				}
				sessions.Add(1)
				a := &attacker{Client: c, rng: rng, step: c.Welcome().NextStep, party: seed == 0}
				for words := c.Memory().Words(0, attackedBytes/8); len(words) > 0; words = words[1:] {
					words[0] = a.word()
				}
				for n := rng.IntN(200); n > 0 && c.Memory().EndCode.Load() == 0; n-- {
					a.act()
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	time.AfterFunc(*hostileTime, func() { stop.Store(true) })
	group.Wait()
	b.idle(honest * int64(agentproto.LayoutOf(16, attackedBytes).Total))
	var ended uint64
	for _, n := range b.agent.Stats().Jobs[0].Ended {
		ended += n
	}
	if ended != sessions.Load() {
		t.Errorf("%d sessions are counted as ended, want %d", ended, sessions.Load())
	}

	for i := range honest {
		b.expect(pushes[i], keys[i], grads[i])
	}
	b.want.Commit()
	if err := b.cluster.Commit(within(t)); err != nil {
		t.Fatal(err)
	}
	for i := range honest {
		want, got := make([]float32, len(grads[i])), make([]float32, len(grads[i]))
		b.want.Read(keys[i], want)
		if err := b.cluster.Worker(0).Pull(within(t), keys[i], got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the rows of correct client %d after %d pushes differ from those of one store", i, pushes[i])
		}
	}
	t.Logf("%d sessions of attackers, %d steps, %v pushes of the others", sessions.Load(), reduced.Load(), pushes)
}
