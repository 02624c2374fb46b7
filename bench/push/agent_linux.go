// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/agentclient"
	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

const agentJob = "push"

// agentConfig is what the process of the host agent is told.
type agentConfig struct {
	Socket   string
	Separate bool // what waits is not added up
}

// clientConfig is what a client of the agent is told.
type clientConfig struct {
	Number     int // of the share that it pushes
	Batch      int // pairs in a push
	Socket     string
	Unprepared bool // the agent looks up the keys of each push
}

func (c *childConfig) serveClients(ctx context.Context) error {
	return c.withWorker(ctx, 0, func(ctx context.Context, worker *transport.Worker, hot *packer.HotSet) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		a, err := agent.Listen(agent.Config{
			Socket: c.Agent.Socket, Log: slog.New(slog.DiscardHandler),
			Jobs: []agent.Job{{
				Name: agentJob, Worker: worker, Number: job, HotSet: hot, Exp: ps.DefaultExp, Separate: c.Agent.Separate, Limits: agent.Limits{Prepared: 1 << 30},
			}},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Close()) }()
		go func() { cancel(a.Serve(ctx)) }()
		return answer(ctx, func() uint64 { return 0 }, map[string]func(context.Context, *mark) error{opMark: frames(worker)})
	})
}

func (c *childConfig) pushAsClient(ctx context.Context) (err error) {
	load, err := openShare(c.Client.Batch, c.Client.Number)
	if err != nil {
		return err
	}
	session, err := agentclient.Dial(ctx, c.Client.Socket, agentproto.Hello{Job: agentJob})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	p := &clientPusher{load: load, session: session}
	if c.Client.Unprepared {
		return drive(ctx, p, 0, nil)
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	// After the first push of a batch the agent knows the numbers of its rows.
	var pushes atomic.Uint64
	if err := pushAll(ctx, p, &pushes, func() bool { return pushes.Load() >= batchesEach-InFlight }); err != nil {
		return err
	}
	return drive(ctx, p, int(pushes.Load()), nil)
}

type clientPusher struct {
	load    batches
	session *agentclient.Client
	handles []uint64 // nil: the batches are not prepared
}

func (p *clientPusher) prepare(ctx context.Context) error {
	for n := range batchesEach {
		handle, err := p.session.Prepare(ctx, p.load.keysOf(n))
		if err != nil {
			return err
		}
		p.handles = append(p.handles, handle)
	}
	return nil
}

func (p *clientPusher) push(ctx context.Context, n int) (ticket uint64, err error) {
	if p.handles == nil {
		return p.session.Push(ctx, p.load.keysOf(n), p.load.gradsOf(n))
	}
	return p.session.PushPrepared(ctx, p.handles[n%batchesEach], p.load.size, p.load.gradsOf(n))
}

func (p *clientPusher) wait(ctx context.Context, ticket uint64) error {
	done, err := p.session.Wait(ctx, ticket)
	if err == nil && done.Status != agentproto.OK {
		err = done.Status
	}
	return err
}

// startClients starts an agent on host 1, and its clients.
func (r *run) startClients(ctx context.Context, c *cluster, baseline string, clients int) (err error) {
	if c.folder, err = os.MkdirTemp("", "libra-bench-*"); err != nil {
		return err
	}
	socket := filepath.Join(c.folder, "agent.sock")
	a, err := child.Launch(ctx, c.group, child.Spec{
		Name: "agent", Command: r.cfg.ChildCommand, CPU: new(cpu(1)), Start: r.bed.net.Host(1).Start, Files: []*os.File{r.load.File},
		Config: childConfig{Place: r.place(1, clients+1), ServerEnd: harness.PlaceOf(r.bed.net, 0).Self, Agent: &agentConfig{Socket: socket, Separate: baseline == AgentSeparate}},
	})
	c.agent = []*child.Child{a}
	for i := 0; i < clients && err == nil; i++ {
		var w *child.Child
		w, err = child.Start(c.group, child.Spec{
			Name: fmt.Sprintf("client %d of the agent", i), Command: r.cfg.ChildCommand, CPU: new(cpu(2 + i)), Files: []*os.File{r.load.File},
			Config: childConfig{Client: &clientConfig{Number: i, Batch: r.work.batch, Socket: socket, Unprepared: baseline == AgentUnprepared}},
		})
		c.workers = append(c.workers, w)
	}
	return err
}
