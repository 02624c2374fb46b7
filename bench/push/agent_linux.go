// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

const agentJob = "push"

// agentConfig configures the process of the host agent.
type agentConfig struct {
	Socket   string
	Separate bool // what waits is not added up
}

func (c *childConfig) serveClients(ctx context.Context) error {
	return c.withWorker(ctx, 0, func(ctx context.Context, worker *transport.Worker, hot *packer.HotSet) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		a, err := agent.Listen(agent.Config{
			Socket: c.Agent.Socket, Log: slog.New(slog.DiscardHandler),
			Jobs: []agent.Job{{
				Name: agentJob, Worker: worker, Number: job, HotSet: hot, Exp: ps.DefaultExp, Separate: c.Agent.Separate,
				Limits: agent.Limits{Prepared: 1 << 30},
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

func (c *workerConfig) pushThroughAgent(ctx context.Context) (err error) {
	load, err := openShare(c.Number)
	if err != nil {
		return err
	}
	session, err := agentclient.Dial(ctx, c.Socket, agentproto.Hello{Job: agentJob})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	session.Alone = true
	p := pusher[uint64]{wait: func(ctx context.Context, ticket uint64) error {
		done, err := session.Wait(ctx, ticket)
		if err == nil && done.Status != agentproto.OK {
			err = done.Status
		}
		return err
	}}
	if c.Unprepared {
		p.push = func(ctx context.Context, n int) (uint64, error) {
			return session.Push(ctx, load.keysOf(n), load.gradsOf(n))
		}
		return drive(ctx, p, 0, nil)
	}
	handles := make([]uint64, load.countPairs())
	for n := range handles {
		if handles[n], err = session.Prepare(ctx, load.keysOf(n)); err != nil {
			return err
		}
	}
	p.push = func(ctx context.Context, n int) (uint64, error) {
		return session.PushPrepared(ctx, handles[n%len(handles)], len(load.keysOf(n)), load.gradsOf(n))
	}
	// After the first push of a batch the agent knows the numbers of its rows.
	var pushes atomic.Uint64
	if err := pushAll(ctx, p, &pushes, func() bool { return int(pushes.Load()) >= len(handles)-InFlight }); err != nil {
		return err
	}
	return drive(ctx, p, int(pushes.Load()), nil)
}

// startAgent starts an agent on host 1.
func (r *run) startAgent(ctx context.Context, c *cluster, baseline string, clients int) (err error) {
	a, err := child.Launch(ctx, c.group, child.Spec{
		Name: "agent", Command: r.cfg.ChildCommand, CPU: new(cpu(1)), Start: r.bed.net.Host(1).Start,
		Files: []*os.File{r.load.File},
		Config: childConfig{HostConfig: r.hostConfig(1, 1, clients+2), ServerEnd: harness.HostConfigOf(r.bed.net, 0).Self,
			Agent: &agentConfig{Socket: c.socketPath(), Separate: baseline == AgentSeparate}},
	})
	c.agent = []*child.Child{a}
	return err
}

func (c *cluster) socketPath() string { return filepath.Join(c.folder, "agent.sock") }
