// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// raw writes an incorrect entry, and wakes the agent.
func raw(c *agentclient.Client, change func(entry *[agentproto.EntryLen]byte)) {
	m := c.Memory()
	e := agentproto.Entry{Op: agentproto.Push, Dim: dim, Values: 64, N: 2}
	place := m.Entry(m.SQTail.Load())
	e.Put(place)
	change(place)
	m.SQTail.Add(1)
	c.Wake()
}

func entry(e agentproto.Entry) func(*agentclient.Client) {
	return func(c *agentclient.Client) { raw(c, func(b *[agentproto.EntryLen]byte) { e.Put(b) }) }
}

// A client that breaks the protocol gets the reason, is dropped, and counted by cause. The others
// continue, and their sums are exact.
func TestHostileClients(t *testing.T) {
	const area = 64 << 10
	rows := agentproto.Entry{Op: agentproto.Push, Dim: dim, Values: 64, N: 2}
	with := func(change func(*agentproto.Entry)) func(*agentclient.Client) {
		e := rows
		change(&e)
		return entry(e)
	}
	attacks := map[string]struct {
		want agentproto.Code
		do   func(c *agentclient.Client)
	}{
		"no such operation":     {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Op = 99 })},
		"operation 0":           {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Op = 0 })},
		"keys beyond the area":  {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Keys = area - 8 })},
		"keys far beyond":       {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Keys = 1<<64 - 8 })},
		"values beyond":         {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Values = area - 8 })},
		"values overflow":       {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Values = 1<<64 - 16 })},
		"values not aligned":    {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Values = 4 })},
		"too many keys":         {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.N = 1<<32 - 1 })},
		"n × dim wraps":         {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.N, e.Dim = 1<<31, 1<<31 })},
		"sums beyond":           {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Op, e.Sums = agentproto.PushSums, area })},
		"sums of a push":        {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Sums = 8 })},
		"keys with a handle":    {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Batch, e.Keys = 1, 8 })},
		"rows of a pull beyond": {agentproto.BadEntry, with(func(e *agentproto.Entry) { e.Op, e.Values = agentproto.Pull, area })},
		"harvest's keys beyond": {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Harvest, Dim: dim, Keys: area - 8, N: 2})},
		"harvest's rows beyond": {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Harvest, Dim: dim, Values: area - 8, N: 2})},
		"harvest's rows wrap":   {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Harvest, N: 1 << 31, Dim: 1 << 31})},
		"a time of a harvest":   {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Harvest, Step: 2})},
		"a batch of a harvest":  {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Harvest, Batch: 1})},
		"statistics beyond":     {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Stats, Values: area - 120})},
		"a step of a flush":     {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Flush, Step: 1})},
		"keys of a flush":       {agentproto.BadEntry, entry(agentproto.Entry{Op: agentproto.Flush, N: 1})},
		"flags": {agentproto.BadEntry, func(c *agentclient.Client) {
			raw(c, func(b *[agentproto.EntryLen]byte) { b[2] = 1 })
		}},
		"tail jumps": {agentproto.BadIndex, func(c *agentclient.Client) {
			c.Memory().SQTail.Add(17)
			c.Wake()
		}},
		"tail goes back": {agentproto.BadIndex, func(c *agentclient.Client) {
			c.Memory().SQTail.Add(math.MaxUint32)
			c.Wake()
		}},
		"completions read that are not there": {agentproto.BadIndex, func(c *agentclient.Client) {
			c.Memory().CQHead.Add(1)
			raw(c, func(*[agentproto.EntryLen]byte) {})
		}},
		"more entries than the rings hold": {agentproto.BadIndex, func(c *agentclient.Client) {
			for i := range uint32(17) {
				for i == 16 && c.Memory().CQTail.Load() < 16 { // all completions are there, and none is read
					runtime.Gosched()
				}
				raw(c, func(b *[agentproto.EntryLen]byte) { (&agentproto.Entry{Op: agentproto.Flush}).Put(b) })
			}
		}},
		"a flood of wake-ups": {agentproto.WakeFlood, func(c *agentclient.Client) {
			for c.Memory().EndCode.Load() == 0 {
				if _, err := c.Conn().Write([]byte{1}); err != nil {
					return
				}
			}
		}},
	}
	says := map[string]string{
		"tail jumps":                          "sq_tail is 17, sq_head 0, cq_head 0 in rings of 16",
		"tail goes back":                      "sq_tail is 4294967295, sq_head 0, cq_head 0 in rings of 16",
		"completions read that are not there": "cq_head is 1 after 0 completions",
		"more entries than the rings hold":    "sq_tail is 17, sq_head 16, cq_head 0 in rings of 16",
	}
	b := newBed(t)
	var stop atomic.Bool
	var group sync.WaitGroup
	pushes := make([]int, 2)
	for i := range pushes {
		keys, grads := batch(i, 40)
		c := b.dial()
		group.Go(func() {
			for !stop.Load() {
				if _, err := c.Push(within(t), keys, grads); err != nil {
					t.Errorf("the other client %d: %v", i, err)
					return
				}
				pushes[i]++
			}
			if err := c.Flush(within(t)); err != nil {
				t.Errorf("the other client %d: %v", i, err)
			}
		})
	}
	wanted := map[agent.Code]uint64{}
	for name, attack := range attacks {
		c := b.dial()
		attack.do(c)
		_ = c.Conn().SetReadDeadline(time.Now().Add(2 * time.Minute))
		buf := make([]byte, 8)
		var err error
		for err == nil { // wake-ups that were in flight
			_, err = c.Conn().Read(buf)
		}
		if ended := c.Memory().Ended(); !errors.Is(ended, attack.want) || !strings.Contains(ended.Error(), says[name]) {
			t.Errorf("%s: the session ended with %v, %v, want %v, saying %q", name, ended, err, attack.want, says[name])
		}
		wanted[agent.Code(attack.want)]++
	}
	stop.Store(true)
	group.Wait()
	for i, n := range pushes {
		keys, grads := batch(i, 40)
		b.expect(n, keys, grads)
	}
	b.check()
	// Only the two others have memory.
	b.idle(2 * int64(agentproto.LayoutOf(16, area).Total))
	for code, n := range wanted {
		if got := b.agent.Stats().Jobs[0].Ended[code]; got != n {
			t.Errorf("%d sessions are counted as ended by %q, want %d", got, code, n)
		}
	}
}

// A client that follows the protocol may wake the agent once for each entry, including those that
// the agent leaves in the ring because too much is pending.
func TestWakesForEntriesThatWait(t *testing.T) {
	const flushes = 1500
	open := make(chan struct{})
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { <-open; return nil }
	})
	c := b.dial(party(1), func(h *agentproto.Hello) { h.Entries, h.BufferBytes = 2048, 4096 })
	ctx := within(t)
	tickets := make([]uint64, 0, 1+flushes)
	for i := range 1 + flushes {
		for c.Memory().AgentSleeps.Load() == 0 && c.Memory().EndCode.Load() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		e := agentproto.Entry{Op: agentproto.Flush}
		if i == 0 { // takes all the room until it is done
			e.Op = agentproto.Barrier
		}
		ticket, err := c.Submit(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	close(open)
	for i, ticket := range tickets {
		if got, err := c.Wait(ctx, ticket); err != nil || got.Status != agentproto.OK {
			t.Fatalf("entry %d: %+v, %v", i, got, err)
		}
	}
}

// A client changes keys and gradients while the agent reads them. The agent sends what it has
// checked: only finite gradients, only under keys that the client has written, each push wholly.
func TestMemoryChangesAfterSubmission(t *testing.T) {
	const pushes, n = 2000, 200
	const gradient = 1. / 64 // so that sums stay in the range of the job
	b := newBed(t)
	c := b.dial()
	keys := c.Memory().Keys(0, n)
	values := c.Memory().Floats(8*n, n*dim)
	hot, cold := make([]uint64, n), make([]uint64, n) // rows 7 and 1007
	good, bad := make([]float32, n*dim), make([]float32, n*dim)
	for i := range n {
		hot[i], cold[i] = 7, 1007
		for j := range dim {
			good[i*dim+j], bad[i*dim+j] = gradient, float32(math.NaN())
		}
	}
	copy(keys, hot)
	copy(values, good)
	var stop atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for i := 0; !stop.Load(); i++ {
			copy(keys, cold)
			if i%64 == 0 {
				copy(values, bad)
			}
			copy(keys, hot)
			copy(values, good)
		}
	})
	refused, accepted := 0, 0
	for range pushes {
		ticket, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Push, Dim: dim, Values: 8 * n, N: n})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Wait(within(t), ticket)
		switch {
		case err != nil:
			t.Fatal(err)
		case got.Status == agentproto.OK:
			accepted++
		case got.Status == agentproto.NotFinite:
			refused++
		default:
			t.Fatalf("completion %+v", got)
		}
	}
	stop.Store(true)
	group.Wait()
	before, after := make([]float32, 2*dim), make([]float32, 2*dim)
	for _, rows := range [][]float32{before, after} {
		if err := b.cluster.Worker(0).Pull(within(t), []uint64{7, 1007}, rows); err != nil {
			t.Fatal(err)
		}
		if err := b.cluster.Commit(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range dim {
		sum := before[i] - after[i] + before[dim+i] - after[dim+i]
		if math.Round(float64(sum)/gradient) != float64(accepted*n) { // the weights before are no multiples
			t.Errorf("scalar %d: the rows hold %v, %d pushes of %d gradients were accepted and %d refused", i, sum, accepted, n, refused)
		}
	}
	t.Logf("%d accepted, %d refused for a NaN", accepted, refused)
}

// A user may have as many connections without HELLO as sessions; further ones are refused.
func TestConnectionsWithoutHello(t *testing.T) {
	const connections, kept = 200, 100
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Clients = kept })
	closed := make(chan struct{}, connections)
	var group sync.WaitGroup
	var all []net.Conn
	for range connections {
		conn, err := net.Dial("unixpacket", b.socket)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
		group.Go(func() {
			b := make([]byte, agentproto.RefusedLen)
			if n, err := conn.Read(b); err == nil && (n != len(b) || !strings.Contains(string(b), "connections of user")) {
				t.Errorf("it is told %q", b[:n])
			}
			closed <- struct{}{}
		})
	}
	for range connections - kept {
		select {
		case <-closed:
		case <-within(t).Done():
			t.Fatal("too many connections are kept")
		}
	}
	for _, conn := range all {
		_ = conn.Close()
	}
	group.Wait()
	if n := b.agent.Stats().Refused[agent.Code(agentproto.Clients)]; n != connections-kept {
		t.Errorf("%d are counted as refused, want %d", n, connections-kept)
	}
	ctx := within(t)
	for {
		c, err := agentclient.Dial(ctx, b.socket, agentproto.Hello{Job: jobName})
		if err == nil {
			_ = c.Close()
			return
		}
		if ctx.Err() != nil { // the agent may not have seen all of them go
			t.Fatal(err)
		}
	}
}
