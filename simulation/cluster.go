// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/simulation/world"
)

// clusterLife is the life of processes: node.RunSwitch, node.RunServer and node.RunWorker, which
// train together, die and are restarted by an operator.
type clusterLife struct {
	*world.World

	options  Options
	plan     plan
	conns    *world.Connections
	accounts *accounts
	disk     *world.Disk // of the server's machine
	cfg      cluster.Config
	dir      string // of the hot set, a real file

	roles    []string            // of the cluster's processes
	procs    map[string]*process // running, by role
	started  map[string]int      // processes, by role
	finished map[string]bool     // workers
	want     []string            // weights after each phase of the training
	epochs   []int               // at the end of each phase
	phase    int                 // current one
	serving  int                 // servers started so far
	done     []*process          // finished workers

	planned  [clocks][]planned // trouble
	moments  [clocks]int       // that have passed
	fence    fencePlan
	late     *rand.Rand             // of goroutines that wait for a processor; nil: none does
	breaks   map[int]world.Breakage // of connections, by the number of the control message at which they occur
	paused   []*world.Host          // at any time
	happened Kinds                  // trouble so far that may end a process
	result   ClusterResult

	outside    []*process        // strangers
	wrong      map[string]string // fields of the configuration that differ at a first start, by role
	neighbour  *neighbour        // nil: the switch has no other job
	guest      uint16            // a worker with its own program; 0: none
	guestSteps uint64            // that it takes
	guestRest  time.Duration     // until it finishes
	mistaken   string            // the configuration reader's error
}

const (
	controlPort    = 7700
	checkpointPath = "/var/libra/weights.libra"
	theSwitch      = "switch"
	theServer      = "server"
)

func standbyName(i int) string { return fmt.Sprintf("standby %d", i) }

// isAggregator reports whether a role, or a host by its name, is the switch or a standby.
func isAggregator(role string) bool { return role == theSwitch || strings.HasPrefix(role, "standby ") }

func workerName(id uint16) string { return fmt.Sprintf("worker %d", id) }

// RunCluster runs the life of a cluster that trains in step, in a bubble of testing/synctest, and
// returns its result. See [Run].
func RunCluster(in Bubble, o Options) (r ClusterResult, err error) {
	dir, err := os.MkdirTemp("", "libra-simulation-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	c, err := newCluster(dir, o)
	if err != nil {
		return r, err
	}
	Clusters.labelled(o, func() { in(func() { r, err = c.runLife() }) })
	return r, err
}

func newCluster(dir string, o Options) (*clusterLife, error) {
	rng := o.random(streamPlan)
	c := &clusterLife{
		options: o, plan: newPlan(rng, o, Clusters), dir: dir,
		procs: map[string]*process{}, started: map[string]int{}, finished: map[string]bool{},
		wrong: map[string]string{}, breaks: map[int]world.Breakage{},
	}
	return c, c.drawConfig(rng)
}

func (c *clusterLife) runLife() (ClusterResult, error) {
	c.beginLife()
	c.planTrouble()
	c.neighbour.joinWorld()
	return c.finishLife(func() bool { return c.phase == len(c.epochs) })
}

// beginLife makes the world with the hosts of the cluster, whose processes will start.
func (c *clusterLife) beginLife() {
	c.World = world.New(world.Options{
		Seed: world.Seed(c.options.Seed), Trace: c.options.Trace, Life: c, Background: true, Bound: clusterBound,
		Conditions: c.worldConditions(),
	})
	c.Trace("seed %d: %+v\n", c.options.Seed, c.plan)
	if c.mistaken != "" {
		c.Fail("%s", c.mistaken)
	}
	c.conns = c.NewConnections(world.ConnectionHooks{Message: c.nextMessage, Breaks: c.noteBreakage})
	c.disk = c.NewDisk(filepath.Dir(checkpointPath), checkpoints{c})
	for _, role := range c.roles {
		c.NewHost(role, netip.AddrPortFrom(c.addressOf(role), framePort))
	}
	for _, role := range c.roles {
		c.After(time.Duration(c.Draw(50))*time.Millisecond, func() { c.startRole(role) })
	}
}

// finishLife runs the life until it has ended.
func (c *clusterLife) finishLife(ended func() bool) (ClusterResult, error) {
	c.Run(ended)
	c.endProcesses()
	c.result.Lives = 1
	c.result.Steps, c.result.Virtual, c.result.Digest = c.Step(), c.Elapsed(), c.Digest()
	c.result.Traffic, c.result.Connections, c.result.Broken = c.Net.Traffic(), c.conns.Made(), c.conns.Broken()
	return c.result, violation(c.options, c.World)
}

// longestBurst is enough to make a worker give up a silent server. A cluster's flows have a few
// frames in flight, and repeat one a second: a burst of a window would take most of a life.
const longestBurst = 24

// worldConditions are the plan's, with the neighbour's host for half of the strangers.
func (c *clusterLife) worldConditions() world.Conditions {
	is := c.plan.worldConditions()
	is.Longest = longestBurst
	if c.neighbour != nil {
		is.Stranger = c.neighbour.cfg.Workers[0].Address
	}
	return is
}

func (c *clusterLife) addressOf(role string) netip.Addr {
	switch role {
	case theSwitch:
		return c.cfg.Switch.Address
	case theServer:
		return c.cfg.Server.Address
	}
	for i, s := range c.cfg.Standbys {
		if standbyName(i) == role {
			return s.Address
		}
	}
	for _, w := range c.cfg.Workers {
		if workerName(w.ID) == role {
			return w.Address
		}
	}
	panic("simulation: no " + role)
}

func (c *clusterLife) hostOf(a netip.Addr) *world.Host { return c.Net.HostOf(a) }

// Turned compares the state of a receiver with the accounts.
func (c *clusterLife) Turned(at *world.Host) { c.accounts.compareState(at) }

// Leaves follows a frame into the network, and starts the trouble that is planned for it.
func (c *clusterLife) Leaves(from, to *world.Host, payload []byte, _ bool) {
	c.passMoment(byFrames)
	c.accounts.recordSent(from, to, payload)
}

// nextMessage starts the trouble that is planned for the next control message, and returns how its
// connection breaks.
func (c *clusterLife) nextMessage() (b world.Breakage, breaks bool) {
	c.passMoment(byMessages)
	b, breaks = c.breaks[c.moments[byMessages]]
	return b, breaks
}

// noteBreakage notes that a connection breaks, if that may end a process: one whose work until then
// is not repeated, or one whose service alone finds out.
func (c *clusterLife) noteBreakage(unnoticed bool) {
	for _, p := range c.procs {
		unnoticed = unnoticed || !p.ready
	}
	if unnoticed {
		c.happened |= Reset
	}
}

// endProcesses ends all processes.
func (c *clusterLife) endProcesses() {
	c.Finish()
	c.Mu.Lock()
	for _, role := range c.roles {
		if p := c.procs[role]; p != nil {
			c.killProcess(p, false)
		}
	}
	for _, p := range slices.Concat(c.outside, c.neighbour.runningProcesses()) {
		c.killProcess(p, false)
	}
	c.Mu.Unlock()
	c.EndAll(func() (running int) {
		for _, p := range slices.AppendSeq(slices.Concat(c.outside, c.neighbour.runningProcesses()), maps.Values(c.procs)) {
			if !p.ended {
				running++
			}
		}
		return running
	})
}
