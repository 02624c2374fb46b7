// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
)

// process is one run of a role.
type process struct {
	*world.Process

	c       *clusterLife
	role    string
	hearing *hearing // of its link; nil: it has none, or is a receiver of the cluster
	cancel  context.CancelFunc
	ready   bool   // it serves, or trains
	stopped bool   // told to end
	ended   bool   // its function has returned
	wrong   string // field of its configuration that differs from the others'
	weights string // that it has trained
	err     error  // that its function has returned
	serving int    // servers started when it was started, or when it was ready

	forgotten sync.Map // of the fault addsChildTwice: connections whose newest harvest is to come again
}

func (c *clusterLife) newProcess(role, name string, at *world.Host, cancel context.CancelFunc) *process {
	return &process{Process: c.NewProcess(name, at), c: c, role: role, cancel: cancel}
}

// startRole starts a role, unless it runs or the training is over.
func (c *clusterLife) startRole(role string) {
	if c.procs[role] != nil || c.Over() || c.finished[role] {
		return
	}
	c.started[role]++
	c.result.Starts++
	ctx, cancel := context.WithCancel(context.Background())
	p := c.newProcess(role, fmt.Sprintf("%s@%d", role, c.started[role]), c.hostOf(c.addressOf(role)), cancel)
	p.Host().PowerUp()
	c.procs[role] = p
	if role == theServer {
		c.serving++
	}
	p.serving = c.serving
	c.Tell("%s starts\n", p.Name())
	cfg := c.cfg
	cfg.Model.Epochs = c.epochs[c.phase]
	if c.started[role] == 1 && c.wrong[role] != "" {
		p.wrong = c.wrong[role]
		c.result.Wrong++
		mistakes[p.wrong](&cfg)
	}
	ready := func() { p.ready, p.serving = true, c.serving }
	env := node.Env{Config: &cfg, Log: p.newLogger(), Machine: p.newMachine(), Ready: ready}
	go func() {
		var weights string
		err := p.runRole(ctx, env, &weights)
		cancel()
		c.Mu.Lock()
		p.ended, p.err, p.weights = true, err, weights
		c.Mu.Unlock()
		c.Kick()
	}()
}

func (p *process) runRole(ctx context.Context, env node.Env, weights *string) error {
	switch {
	case p.role == theSwitch:
		return node.RunSwitch(ctx, env)
	case isAggregator(p.role):
		own, err := env.Config.ForStandby(slices.IndexFunc(env.Config.Standbys, func(s cluster.Standby) bool {
			return s.Address == p.Host().Endpoint().IP
		}))
		if err != nil {
			return err
		}
		env.Config = own
		return node.RunSwitch(ctx, env)
	case p.role == theServer:
		r, err := node.RunServer(ctx, env)
		if err == nil {
			*weights = r.WeightsSHA256
		}
		return err
	}
	named := func(w cluster.Worker) bool { return workerName(w.ID) == p.role }
	id := env.Config.Workers[slices.IndexFunc(env.Config.Workers, named)].ID
	if id == p.c.guest {
		return p.runGuest(ctx, env)
	}
	_, err := node.RunWorker(ctx, env, node.WorkerOptions{ID: id})
	return err
}

// newMachine is the machine of a process.
func (p *process) newMachine() node.Machine {
	c := p.c
	m := node.Machine{
		Listen: func(_ context.Context, at netip.AddrPort) (net.Listener, error) { return c.conns.Listen(p.Process, at) },
		Client: append(p.clientOptions(), p.clientFaults(), p.adoptsEarly(), p.harvestsChildren(),
			p.notesAdoptions()),
		Server: append(serverOptions(p.Process), p.serverFaults()),
		Link: func(netip.AddrPort) (link.Link, error) {
			if p.Link() != nil {
				p.Turn("opens its link again", nil, time.Time{})
				c.accounts.reopenLink(p)
			}
			l, err := p.Open(p.newWatcher())
			if err != nil {
				return nil, err
			}
			return l, nil
		},
		Gate:    p.enterEndpoint,
		Plane:   func(plane aggregator.Plane) aggregator.Plane { return watchedPlane{plane, p, map[string]int{}} },
		Store:   func(store *ps.Store) { c.accounts.openStore(p, store) },
		Fenced:  p.generationFenced,
		Rewind:  p.rewindsStep,
		Began:   func(int) { p.generationBegan() },
		Pushes:  func(keys []uint64, grads []float32) { c.accounts.recordPush(p, keys, grads) },
		Flushed: func() { c.accounts.recordFlush(p) },
		Turn:    func(what string) { p.Turn(what, nil, time.Time{}) },
		Random:  &lockedReader{w: c.World, from: seeded(c.options.named("random of " + p.Name()))},
	}
	if p.role == theServer {
		m.Disk = c.disk.For(p.Process)
	}
	return m
}

// newWatcher is what follows the frames of the process's link.
func (p *process) newWatcher() world.Watcher {
	if isAggregator(p.role) || p.role == theServer {
		return accountant{p.c.accounts, p.Host()}
	}
	p.hearing = newHearing(p.Host(), nil)
	return p.hearing
}

// newLogger is the process's log, which goes into the trace.
func (p *process) newLogger() *slog.Logger { return newLogger(p.c.World, p.Name()) }

// newLogger is the log of a process.
func newLogger(w *world.World, process string) *slog.Logger {
	out := w.LogOf(process)
	if out == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: noTime}))
}

// noTime removes the time, which the trace has.
func noTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// killProcess ends a process at once; with silence, also its machine.
func (c *clusterLife) killProcess(p *process, silence bool) {
	if p.Dead() {
		return
	}
	p.Kill(silence)
	p.cancel()
}

// lockedReader is a source of random numbers for several goroutines.
type lockedReader struct {
	w    *world.World
	from *rand.ChaCha8
}

func (r *lockedReader) Read(b []byte) (int, error) {
	r.w.Mu.Lock()
	defer r.w.Mu.Unlock()
	return r.from.Read(b)
}

func seeded(rng *rand.Rand) *rand.ChaCha8 {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rng.Uint32())
	}
	return rand.NewChaCha8(seed)
}
