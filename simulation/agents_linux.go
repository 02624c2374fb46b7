// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// agentsLife is the life of host agents and their clients: node.RunSwitch, node.RunServer and
// node.RunAgent, and the parties of a job on the hosts of the agents.
type agentsLife struct {
	*world.World

	options Options
	plan    plan
	of      jobPlan
	conns   *world.Connections
	disk    *world.Disk // of the server's machine
	cfg     cluster.Config
	dir     string // of the hot set and the cluster's file, real files

	code func(keys []uint64, grads []float32) // what the codec does to a push; nil: there is none

	roles   []string             // of the cluster's processes
	procs   map[string]*agentRun // running, by role
	started map[string]int       // processes, by role
	serving int                  // servers started so far

	parties  []*party
	sessions []*ring // all
	books    *stepBooks
	auditing bool // the last sums are compared
	audited  bool // they were

	planned  [clocks][]planned      // trouble
	moments  [clocks]int            // that have passed
	breaks   map[int]world.Breakage // of connections, by the number of the control message at which they occur
	happened Kinds                  // trouble so far that may end a process
	result   AgentsResult
}

// agentsBound is how long a life of agents may take once the trouble has ended.
const agentsBound = 3 * time.Minute

// EveryLife lists the kinds of life that can run here.
func EveryLife() []Life { return []Life{Workers, Clusters, Agents, Reducers, Rings} }

func agentName(id uint16) string { return fmt.Sprintf("agent %d", id) }

// RunAgents runs the life of host agents and of their clients, in a bubble of testing/synctest, and
// returns its result. See [Run].
func RunAgents(in Bubble, o Options) (r AgentsResult, err error) {
	dir, err := os.MkdirTemp("", "libra-simulation-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	l, err := newAgentsLife(dir, o)
	if err != nil {
		return r, err
	}
	Agents.labelled(o, func() { in(func() { r, err = l.runLife() }) })
	return r, err
}

func newAgentsLife(dir string, o Options) (*agentsLife, error) {
	rng := o.random(streamPlan)
	l := &agentsLife{
		options: o, plan: newPlan(rng, o, Agents), dir: dir, procs: map[string]*agentRun{}, started: map[string]int{},
		breaks: map[int]world.Breakage{},
	}
	return l, l.drawConfig(rng)
}

func (l *agentsLife) runLife() (AgentsResult, error) {
	l.World = world.New(world.Options{
		Seed: world.Seed(l.options.Seed), Trace: l.options.Trace, Life: l, Background: true, Bound: agentsBound,
		Conditions: l.plan.worldConditions(),
	})
	l.Trace("seed %d: %+v %+v %+v\n", l.options.Seed, l.plan, l.of, l.cfg.Codec.Config())
	l.conns = l.NewConnections(world.ConnectionHooks{Message: l.nextMessage, Breaks: func(bool) { l.noteBreak() }})
	l.disk = l.NewDisk(filepath.Dir(checkpointPath), plainDisk{})
	for _, role := range l.roles {
		l.NewHost(role, netip.AddrPortFrom(l.addressOf(role), framePort))
	}
	for _, role := range l.roles {
		l.After(time.Duration(l.Draw(50))*time.Millisecond, func() { l.startRole(role) })
	}
	for _, p := range l.parties {
		l.After(time.Duration(l.Draw(100))*time.Millisecond, p.startProgram)
	}
	l.planTrouble()
	l.Run(l.hasEnded)
	l.endAll()
	l.result.Lives = 1
	l.result.Steps, l.result.Virtual, l.result.Digest = l.Step(), l.Elapsed(), l.Digest()
	l.result.Traffic, l.result.Broken = l.Net.Traffic(), l.conns.Broken()
	return l.result, violation(l.options, l.World)
}

// hasEnded reports whether all parties have taken their steps, after the trouble, and all was
// compared.
func (l *agentsLife) hasEnded() bool {
	if l.Healed() && l.allReached() && !l.auditing {
		l.auditing = true
		l.After(0, l.startAudit)
	}
	return l.audited
}

func (l *agentsLife) addressOf(role string) netip.Addr {
	switch role {
	case theSwitch:
		return l.cfg.Switch.Address
	case theServer:
		return l.cfg.Server.Address
	}
	for _, w := range l.cfg.Workers {
		if agentName(w.ID) == role {
			return w.Address
		}
	}
	panic("simulation: no " + role)
}

// Turned notes what the server has harvested. The ledger compares what clients are told.
func (l *agentsLife) Turned(at *world.Host) {
	if at != nil && at.Name() == theServer {
		l.books.fence.noteHarvest()
	}
}

// Leaves starts the trouble that is planned for a frame.
func (l *agentsLife) Leaves(_, _ *world.Host, payload []byte, _ bool) {
	l.passMoment(byFrames)
	h, err := wire.ParseHeader(payload)
	switch {
	case err != nil:
	case h.Type == wire.TypeStep:
		l.result.Framed++
	case (h.Type == wire.TypeCold || h.Type == wire.TypeColdAt) && h.Flags&wire.FlagCoded != 0:
		l.result.Coded++
	}
}

// nextMessage starts the trouble that is planned for the next control message, and returns how its
// connection breaks.
func (l *agentsLife) nextMessage() (b world.Breakage, breaks bool) {
	l.passMoment(byMessages)
	b, breaks = l.breaks[l.moments[byMessages]]
	return b, breaks
}

// passMoment counts an event, and starts the trouble that is planned for it.
func (l *agentsLife) passMoment(clock int) {
	l.moments[clock]++
	for _, p := range l.planned[clock] {
		if p.moment == l.moments[clock] {
			l.After(0, p.begin)
		}
	}
}

// endAll ends all processes and programs.
func (l *agentsLife) endAll() {
	l.Finish()
	l.Mu.Lock()
	for _, role := range l.roles {
		if p := l.procs[role]; p != nil {
			l.killProcess(p, false)
		}
	}
	l.Mu.Unlock()
	l.EndAll(func() (running int) {
		for _, p := range l.procs {
			if !p.ended {
				running++
			}
		}
		return running
	})
	for _, s := range l.sessions {
		s.closeSocket()
		_ = s.mem.Close()
	}
}
