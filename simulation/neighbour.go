// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
)

// neighbour is another job of the same switch: a server and a worker, which train on their own
// machines, without a checkpoint, are killed, and start again. Its hot set may be divided among up
// to three jobs, of that switch or, by a plan, of up to three switches. The accounts follow only
// the cluster's own job, so they detect anything that the neighbour adds to it; anything added to
// the neighbour, or missing in a step of it, shows in its final weights.
type neighbour struct {
	c       *clusterLife
	cfg     cluster.Config
	want    string     // weights
	names   []string   // of its processes: the server, the worker, and its own switches
	procs   []*process // of the same; nil: none runs
	started []int
	done    bool // its worker has finished
	runs    int  // of its server
	joins   int  // of workers in this one
	changes int  // of its plan that an operator waits for

	whenItTrains []func() // changes of the plan soon after each start of its worker

	// Of kills between adoption and close.
	victim  int           // index of the process
	dies    bool          // it is still to be killed
	delay   time.Duration // after an adoption
	adopted bool          // its worker has adopted a plan

	// Of the fault numbersTogether: the newest harvest of the server's run, and the stream that has
	// brought it.
	newest   uint64
	newestBy *faultyStream
	of       int // the run
}

const (
	theirServer = "neighbour's server"
	theirWorker = "neighbour's worker"
	theirJob    = job + 1
	theirRuns   = 4
)

// theirSwitch is the index of the first of its own switches among its processes.
const theirSwitch = 2

// addNeighbour decides whether another job is on the switch. As in addIndependentProperties, that
// changes nothing else.
func (c *clusterLife) addNeighbour() error {
	rng := c.options.named("neighbour")
	always := c.options.always() // of plans, which few others have
	if rng.IntN(4) > 0 && !always || c.options.Kinds&Neighbour == 0 {
		return nil
	}
	if c.options.changes {
		c.plan.kinds |= c.options.Kinds & Crash
	}
	n := &neighbour{c: c, cfg: c.cfg}
	cfg := &n.cfg
	address := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, host}) }
	cfg.Job = cluster.Job{ID: theirJob, HotSet: filepath.Join(c.dir, "neighbour.libra"), Sync: true}
	cfg.Server = cluster.Server{
		Host: cluster.Host{Address: address(20)}, Control: netip.AddrPortFrom(address(20), controlPort),
	}
	// Its worker has the same number as one of the others.
	cfg.Workers = []cluster.Worker{{ID: 1, Host: cluster.Host{Address: address(21)}}}
	cfg.Model.Epochs, cfg.Model.Batch, cfg.Model.Seed = 1, 5+rng.IntN(10), rng.Uint64()>>1
	cfg.Data.Synthetic = &cluster.Synthetic{Rows: 10 + rng.IntN(60), Seed: rng.Uint64() >> 1, HotShare: 0.6, Hot: 1000}
	for share := range uint16(rng.IntN(3)) { // of its hot set, beside the first
		if always {
			break
		}
		cfg.Job.IDs = append(cfg.Job.IDs, theirJob+1+share)
		cfg.Standbys = nil // such a job ends with its switch
	}
	if err := n.addSwitches(); err != nil {
		return err
	}
	n.leaveSteps()
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := makeHotSet(cfg, func(keys []uint64, _ int) []uint64 { return keys }); err != nil {
		return err
	}
	var err error
	n.want, err = reference(cfg, 0)
	c.neighbour = n
	if err != nil {
		return err
	}
	return n.planChanges()
}

// always reports whether each life has a neighbour with a plan.
func (o Options) always() bool { return o.changes || o.fault == closesEarly || o.fault.isOfTrees() }

// leaveSteps decides whether a job with shares has no barriers. Its weights are known nevertheless:
// at so low a rate all scores stay 0 to the last bit, so that gradients do not depend on weights,
// and all numbers are multiples of a power of two that floats hold.
func (n *neighbour) leaveSteps() {
	rng, cfg := n.c.options.named("neighbour's steps"), &n.cfg
	if !cfg.Job.HasShares() || rng.IntN(2) == 0 {
		return
	}
	cfg.Job.Sync, cfg.Job.Staleness, cfg.Job.Accumulate = false, 1+rng.IntN(8), 1+rng.IntN(3)
	cfg.Job.Harvest = time.Duration(200+rng.IntN(30_000)) * time.Microsecond
	cfg.Model.Kind, cfg.Model.Factors, cfg.Model.InitScale = "lr", 0, 0
	cfg.Model.Optimizer, cfg.Model.LearningRate, cfg.Model.InitialAccumulator = "sgd", 0x1p-60, 0
	cfg.Model.L2, cfg.Codec = 0, cluster.Codec{}
	cfg.Model.Batch = 1 << rng.IntN(4)
	cfg.Data.Synthetic.Rows += -cfg.Data.Synthetic.Rows & 7
}

// addSwitches decides whether a plan divides the hot set among the switch and others of its own,
// which no other job has. There may not be room for all parts.
func (n *neighbour) addSwitches() error {
	n.names = []string{theirServer, theirWorker}
	if rng, cfg := n.c.options.named("neighbour's switches"), &n.cfg; len(cfg.Job.IDs) == 0 && (rng.IntN(2) == 0 || n.c.options.always()) {
		model, err := node.Model(cfg.Model)
		if err != nil {
			return err
		}
		cfg.Job.Plan, cfg.Standbys = cluster.PlanAuto, nil
		if more := n.c.options.named("neighbour's numbers"); more.IntN(4) > 0 { // for changes of the plan
			cfg.Job.IDs = []uint16{theirJob + 1, theirJob + 2}
		}
		cfg.Switches = []cluster.FabricSwitch{{Name: "core", Address: cfg.Switch.Address}}
		if cfg.Switch.Slots == 0 {
			cfg.Switches[0].Slots = model.Dim() * (1 + rng.IntN(30))
		}
		cfg.Server.At, cfg.Workers[0].At = "core", "core"
		for i := range 1 + rng.IntN(2) {
			at := netip.AddrFrom4([4]byte{10, 0, 0, byte(30 + i)})
			s := cluster.FabricSwitch{Name: fmt.Sprint("neighbour's switch ", i), Address: at,
				Control: netip.AddrPortFrom(at, controlPort), Links: []string{cfg.Switches[rng.IntN(1+i)].Name},
				Slots: model.Dim() * (1 + rng.IntN(30))}
			cfg.Switches = append(cfg.Switches, s)
			n.names = append(n.names, s.Name)
			if rng.IntN(2) == 0 {
				cfg.Workers[0].At = s.Name
			}
		}
	}
	n.addParents()
	n.procs, n.started = make([]*process, len(n.names)), make([]int, len(n.names))
	return nil
}

// addressOf returns the address of a process, by its index.
func (n *neighbour) addressOf(i int) netip.Addr {
	switch i {
	case 0:
		return n.cfg.Server.Address
	case 1:
		return n.cfg.Workers[0].Address
	}
	return n.cfg.Switches[1+i-theirSwitch].Address
}

// joinWorld adds the neighbour's machines to the network, and plans its life.
func (n *neighbour) joinWorld() {
	if n == nil {
		return
	}
	s, rng := n.c, n.c.options.named("neighbour's life")
	for i, name := range n.names[:theirSwitch] {
		s.NewHost(name, netip.AddrPortFrom(n.addressOf(i), framePort))
		n.restartLater(i, rng.IntN(100))
	}
	kills := rng.IntN(4)
	for i := theirSwitch; i < len(n.names); i++ {
		s.NewHost(n.names[i], netip.AddrPortFrom(n.addressOf(i), framePort))
		n.restartLater(i, rng.IntN(100))
	}
	for range kills {
		moment, which, silence := rng.IntN(1+rng.IntN(1500)), rng.IntN(len(n.names)), rng.IntN(2) == 0
		if s.plan.kinds&Crash == 0 {
			continue
		}
		n.killAt(moment, which, silence)
	}
}

// killAt plans that one of its processes is killed.
func (n *neighbour) killAt(moment, which int, silence bool) {
	c := n.c
	c.planned[byMessages] = append(c.planned[byMessages], planned{moment, func() {
		n.killOne(which, silence, &c.result.Interrupted)
	}})
}

// killOne kills one of its processes, if that runs, and counts it if an operator waits for a change
// of the plan.
func (n *neighbour) killOne(which int, silence bool, during *int) {
	c := n.c
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if victim := n.procs[which]; victim != nil && !victim.Dead() && !c.Healed() {
		c.Tell("%s is killed\n", victim.Name())
		if n.changes > 0 {
			*during++
		}
		c.killProcess(victim, silence)
	}
}

// restartLater restarts one of the two in a while.
func (n *neighbour) restartLater(i, ms int) {
	n.c.After(time.Duration(10+ms)*time.Millisecond, func() { n.startOne(i) })
}

func (n *neighbour) startOne(i int) {
	c, s := n.c, n.c
	if n.procs[i] != nil || s.Over() || n.runs == theirRuns || i == 1 && n.done {
		return
	}
	n.started[i]++
	switch i {
	case 0:
		n.runs++
		n.done, n.joins = false, 0
		if n.procs[1] != nil {
			n.joins = 1
		}
	case 1:
		n.joins++
		for k, change := range n.whenItTrains {
			c.After(time.Duration(10*(1+k))*time.Millisecond, change)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := c.newProcess(n.names[i], fmt.Sprintf("%s@%d", n.names[i], n.started[i]), c.hostOf(n.addressOf(i)), cancel)
	p.Host().PowerUp()
	n.procs[i] = p
	s.Tell("%s starts\n", p.Name())
	cfg := n.cfg
	env := node.Env{Config: &cfg, Log: p.newLogger(), Machine: p.newMachine(), Ready: func() {}}
	env.Machine.Store, env.Machine.Pushes, env.Machine.Flushed = nil, nil, nil
	go func() {
		var weights string
		var err error
		switch i {
		case 0:
			var r *node.ServerResult
			if r, err = node.RunServer(ctx, env); err == nil {
				weights = r.WeightsSHA256
			}
		case 1:
			_, err = node.RunWorker(ctx, env, node.WorkerOptions{ID: cfg.Workers[0].ID})
		default:
			env.Machine.Plane = nil // the accounts follow the cluster's own
			if env.Config, err = cfg.ForSwitch(n.names[i]); err == nil {
				env.Config.Switch.Slots *= 2 // for shares that are opened while others are closed
				err = node.RunSwitch(ctx, env)
			}
		}
		cancel()
		s.Mu.Lock()
		p.ended, p.err, p.weights = true, err, weights
		s.Mu.Unlock()
		s.Kick()
	}()
}

// handleEnds is the neighbour's operator, who reacts when one of its processes has ended.
func (n *neighbour) handleEnds() {
	if n == nil {
		return
	}
	n.killAtAdoption()
	s := n.c
	for i, p := range n.procs {
		if p == nil || !p.ended {
			continue
		}
		n.procs[i] = nil
		if s.Over() {
			continue
		}
		s.Tell("%s ends, killed %v, with an error %v\n", p.Name(), p.Dead(), p.err != nil)
		whole := p.err == nil && !p.Dead()
		if p.err != nil && !p.Dead() && n.c.plan.kinds == Neighbour {
			s.Fail("%s ends, which nothing explains: %v", p.Name(), p.err)
		}
		switch {
		case i >= theirSwitch:
			n.restartLater(i, 200)
		case i == 1 && whole:
			n.done = true
		case i == 1:
			n.restartLater(1, 500)
		default:
			if whole {
				n.c.result.Neighbours++
				if n.cfg.Job.Plan != "" {
					n.c.result.Divided++
				}
				again := !n.cfg.Job.Sync && n.joins > 1 // such a worker repeats what it has not reported
				if !n.cfg.Job.Sync && !again {
					n.c.result.Timed++
				}
				if p.weights != n.want && !again {
					s.Fail("the job of a neighbour ends with the weights %s, not %s", p.weights, n.want)
				}
			}
			if w := n.procs[1]; w != nil {
				n.c.killProcess(w, false)
			}
			n.done = false
			n.restartLater(0, 300)
			n.restartLater(1, 400)
		}
	}
}

// hasNumber reports whether the server has had a harvest with a number, or a newer one, by another
// stream.
func (n *neighbour) hasNumber(by *faultyStream, number uint64) bool {
	n.c.Mu.Lock()
	defer n.c.Mu.Unlock()
	if n.of != n.runs {
		n.of, n.newest, n.newestBy = n.runs, 0, nil
	}
	if n.newestBy != by && number <= n.newest {
		return true
	}
	n.newest, n.newestBy = number, by
	return false
}

// runningProcesses lists the processes that have not ended.
func (n *neighbour) runningProcesses() (running []*process) {
	if n == nil {
		return nil
	}
	for _, p := range n.procs {
		if p != nil {
			running = append(running, p)
		}
	}
	return running
}
