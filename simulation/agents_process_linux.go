// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
)

// agentRun is one run of the switch, the server or an agent.
type agentRun struct {
	*world.Process

	l       *agentsLife
	role    string
	cancel  context.CancelFunc
	ready   bool // it serves
	stopped bool // told to end
	ended   bool // its function has returned
	err     error
	era     int // servers started when it was ready

	agent    *agent.Agent // of an agent that serves
	sessions []*ring      // at it
	sent     sentFrames
	settled  bool // nothing of it is at a switch alone
}

// startRole starts a role, unless it runs.
func (l *agentsLife) startRole(role string) {
	if l.procs[role] != nil || l.Over() {
		return
	}
	l.started[role]++
	ctx, cancel := context.WithCancel(context.Background())
	at := l.Net.HostOf(l.addressOf(role))
	p := &agentRun{
		Process: l.NewProcess(fmt.Sprintf("%s@%d", role, l.started[role]), at), l: l, role: role, cancel: cancel,
		sent: sentFrames{l: l},
	}
	at.PowerUp()
	l.procs[role] = p
	switch role {
	case theSwitch:
	case theServer:
		l.serving++
	default:
		l.result.Agents++
	}
	l.Tell("%s starts\n", p.Name())
	go func() {
		err := p.runRole(ctx)
		cancel()
		l.Mu.Lock()
		p.ended, p.err = true, err
		l.Mu.Unlock()
		l.Kick()
	}()
}

func (p *agentRun) runRole(ctx context.Context) error {
	l := p.l
	cfg, log := l.cfg, newLogger(l.World, p.Name())
	ready := func() { p.ready, p.era = true, l.serving }
	switch p.role {
	case theSwitch:
		return node.RunSwitch(ctx, node.Env{Config: &cfg, Log: log, Machine: p.newMachine(), Ready: ready})
	case theServer:
		_, err := node.RunServer(ctx, node.Env{Config: &cfg, Log: log, Machine: p.newMachine(), Ready: ready})
		return err
	}
	var id uint16
	for _, w := range cfg.Workers {
		if agentName(w.ID) == p.role {
			id = w.ID
		}
	}
	on := node.AgentMachine{
		Machine: p.newMachine(), Agent: func(a *agent.Agent) { p.agent = a }, SumsInFrames: l.of.framed,
	}
	on.Job = p.spoilJob
	file := &cluster.Agent{Jobs: []cluster.AgentJob{{
		Name: jobName, Cluster: l.clusterFile(), Worker: id, Finish: l.options.fault == finishes,
	}}}
	return on.RunAgent(ctx, file, log, ready)
}

// spoilJob puts the life's fault into an agent's job.
func (p *agentRun) spoilJob(j *agent.Job) {
	switch p.l.options.fault {
	case startsOver:
		j.NextStep = 0
	case forgetsTorn:
		if reduce := j.Reduce; reduce != nil {
			j.Reduce = func(ctx context.Context, step uint64, a agent.Arrival) (agent.Sums, error) {
				if a.Refused != nil && !a.Refused.KeyKnown {
					a.Refused = nil
				}
				return reduce(ctx, step, a)
			}
		}
	}
}

// newMachine is the machine of a process.
func (p *agentRun) newMachine() node.Machine {
	l := p.l
	m := node.Machine{
		Listen: func(_ context.Context, at netip.AddrPort) (net.Listener, error) { return l.conns.Listen(p.Process, at) },
		Client: append(clientOptions(p.Process, l.conns, func(any) {}), p.spoilsMarks()),
		Server: serverOptions(p.Process),
		Link: func(netip.AddrPort) (link.Link, error) {
			on, err := p.Open(&p.sent)
			if err != nil {
				return nil, err
			}
			on.WatchBy(isReadable)
			return on, nil
		},
		Gate:   func() { p.Link().Enter() },
		Turn:   func(what string) { p.Turn(what, nil, time.Time{}) },
		Plane:  func(plane aggregator.Plane) aggregator.Plane { return notedSwaps{plane, p} },
		Store:  func(store *ps.Store) { l.books.openStore(p, store) },
		Fenced: p.serverFenced, Settled: p.hasSettled,
		Random: &lockedReader{w: l.World, from: seeded(l.options.named("random of " + p.Name()))},
	}
	if p.role == theServer {
		m.Disk = l.disk.For(p.Process)
	}
	return m
}

// isReadable reports whether a descriptor is readable.
func isReadable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 && err == nil
}

// killProcess ends a process at once. Nothing that its goroutines still do is visible to its
// clients.
func (l *agentsLife) killProcess(p *agentRun, silence bool) {
	if p.Dead() {
		return
	}
	for _, s := range p.sessions {
		s.loseAgent()
	}
	p.Kill(silence)
	p.cancel()
}
