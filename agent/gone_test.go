// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// A client that ends before it is welcomed leaves nothing behind: no session, no memory, and its
// place among the parties of a barrier is free.
func TestClientGoesBeforeItIsWelcome(t *testing.T) {
	const parties = 2
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Clients = parties })
	hello := agentproto.Hello{Oldest: 1, Newest: 1, Job: jobName, Entries: 16, BufferBytes: 64 << 10, Parties: parties}
	message, err := hello.Marshal()
	must(t, err)
	goOn := b.stopWorker() // the worker, which would welcome them
	for range parties {
		conn, err := net.Dial("unixpacket", b.socket)
		must(t, err)
		_, err = conn.Write(message)
		must(t, errors.Join(err, conn.Close()))
	}
	goOn()
	for ctx := within(t); b.agent.Stats().Refused[agent.Code(agentproto.BadHello)] < parties; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("%v are counted as refused", b.agent.Stats().Refused)
		}
	}
	if s := b.agent.Stats().Jobs[0]; len(s.Clients) != 0 || s.Memory != 0 {
		t.Errorf("they leave %+v", s)
	}
	var both []*agentclient.Client
	for range parties {
		both = append(both, b.dial(party(parties)))
	}
	tickets := make([]uint64, parties)
	for i, c := range both {
		tickets[i], err = c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier})
		must(t, err)
	}
	for i, c := range both {
		if got, err := c.Wait(within(t), tickets[i]); err != nil || got.Status != agentproto.OK {
			t.Errorf("party %d: %+v, %v", i, got, err)
		}
	}
}

// A client that has given up before it is welcomed (for example, libra_open timed out) takes
// nothing from waiting clients, and may connect again.
func TestOthersWaitOnWithoutOneThatIsNotWelcome(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(ctx context.Context, _ uint64) error { return nil }
	})
	ctx := within(t)
	one := b.dial(party(2))
	ticket, err := one.Submit(ctx, agentproto.Entry{Op: agentproto.Barrier})
	must(t, err)
	must(t, one.Flush(ctx))
	hello := agentproto.Hello{Oldest: 1, Newest: 1, Job: jobName, Entries: 16, BufferBytes: 64 << 10, Parties: 2}
	message, err := hello.Marshal()
	must(t, err)
	goOn := b.stopWorker()
	conn, err := net.Dial("unixpacket", b.socket)
	must(t, err)
	_, err = conn.Write(message)
	must(t, errors.Join(err, conn.Close()))
	goOn()
	for b.agent.Stats().Refused[agent.Code(agentproto.BadHello)] < 1 && ctx.Err() == nil {
		runtime.Gosched()
	}
	two, err := agentclient.Dial(ctx, b.socket, hello)
	if err != nil {
		t.Errorf("it comes again: %v", err)
	} else {
		defer two.Close()
		if err := two.Barrier(ctx, 0); err != nil {
			t.Errorf("its barrier: %v", err)
		}
	}
	if got, err := one.Wait(ctx, ticket); err != nil || got.Status != agentproto.OK {
		t.Errorf("the one that waited: %v %v", got.Status, err)
	}
}
