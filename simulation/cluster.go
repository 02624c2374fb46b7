// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
)

// clusterLife is the life of processes: node.RunSwitch, node.RunServer and node.RunWorker, which
// train together, die and are restarted by an operator.
type clusterLife struct {
	s        *sim
	tcp      *tcp
	accounts *accounts
	disk     *disk // of the server's machine
	cfg      cluster.Config
	dir      string // of the hot set, a real file

	roles    []string            // of the cluster's processes
	procs    map[string]*process // running, by role
	started  map[string]int
	finished map[string]bool // workers
	want     []string        // weights after each phase of the training
	phase    int
	epochs   []int
	serving  int        // servers started so far
	done     []*process // finished workers
	planned  [4][]planned
	moments  [4]int
	writes   int              // writes of the server to its disk
	breaks   map[int]breakage // of connections, by the number of the control message at which they occur
	paused   []*host          // at any time
	happened Kinds            // trouble so far that may end a process
	result   ClusterResult

	outside    []*process        // strangers
	wrong      map[string]string // fields of the configuration that differ at a first start
	neighbour  *neighbour        // nil: the switch has no other job
	guest      uint16            // a worker with its own program; 0: none
	guestSteps uint64            // the steps that it takes
	guestRest  time.Duration     // until it finishes
	mistaken   string            // the configuration reader's error
}

const (
	controlPort    = 7700
	framePort      = 7000
	checkpointPath = "/var/libra/weights.libra"
	theSwitch      = "switch"
	theServer      = "server"
)

func workerName(id uint16) string { return fmt.Sprintf("worker %d", id) }

// process is one run of a role.
type process struct {
	c       *clusterLife
	role    string
	name    string
	host    *host
	link    *simLink
	cancel  context.CancelFunc
	ready   bool        // it serves, or trains
	dead    atomic.Bool // killed
	stopped bool        // told to end
	ended   bool        // its function has returned
	wrong   string      // field of its configuration that differs from the others'
	weights string
	err     error
	serving int // servers started when it was started, or when it was ready
}

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
	Clusters.named(o, func() { in(func() { r, err = c.live() }) })
	return r, err
}

func newCluster(dir string, o Options) (*clusterLife, error) {
	s := &sim{options: o, out: o.Trace, digest: newDigest()}
	c := &clusterLife{
		s: s, dir: dir, procs: map[string]*process{}, started: map[string]int{}, finished: map[string]bool{}, wrong: map[string]string{}, breaks: map[int]breakage{},
	}
	s.cluster = c
	rng := s.random(streamPlan)
	s.plan = s.newPlan(rng)
	s.schedule, s.netRand = s.random(streamSchedule), s.random(streamNetwork)
	return c, c.configure(rng)
}

// configure decides the cluster's training, and its final weights.
func (c *clusterLife) configure(rng *rand.Rand) error {
	p := &c.s.plan
	p.window, p.stripes = 512, 1+rng.IntN(3)
	p.payload = 600
	sync := rng.IntN(2) == 0
	if p.burst > 0 { // a long one silences a flow for seconds
		c.happened = Loss
	}
	p.inbox = max(p.inbox, 64)
	p.trouble = time.Duration(float64(10*time.Millisecond) * portable.Pow(2000, rng.Float64()))
	address := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, host}) }
	every := time.Duration(1+rng.IntN(2000)) * time.Millisecond
	c.cfg = cluster.Config{
		Backend: cluster.BackendUDP, Port: framePort,
		Job:    cluster.Job{ID: job, HotSet: filepath.Join(c.dir, "hot.libra"), Sync: sync},
		Switch: cluster.Switch{Address: address(1), Control: netip.AddrPortFrom(address(1), controlPort), Stripes: p.stripes, LaneAligned: rng.IntN(2) == 0},
		Server: cluster.Server{
			Host: cluster.Host{Address: address(2)}, Control: netip.AddrPortFrom(address(2), controlPort),
			Checkpoint: checkpointPath, CheckpointEvery: &every, CheckpointSteps: uint64(rng.IntN(4)),
		},
		Model: cluster.Model{Kind: "fm", Factors: 1 + rng.IntN(3), Batch: 5 + rng.IntN(20), Seed: rng.Uint64() >> 1, LearningRate: 0.05, InitialAccumulator: 1e-4, InitScale: 0.1},
		Data:  cluster.Data{Synthetic: &cluster.Synthetic{Rows: 40 + rng.IntN(120), Seed: rng.Uint64() >> 1, HotShare: 0.6, Hot: 1000}},
	}
	for id := range p.workers {
		c.cfg.Workers = append(c.cfg.Workers, cluster.Worker{ID: uint16(id + 1), Host: cluster.Host{Address: address(byte(id + 3))}})
	}
	if !sync {
		c.cfg.Job.Harvest = time.Duration(200+rng.IntN(30_000)) * time.Microsecond
		c.cfg.Job.HarvestFrames = uint64(rng.IntN(3) * rng.IntN(30))
		c.cfg.Job.Staleness = 1 + int(c.cfg.Job.Harvest/time.Microsecond)%8
		c.cfg.Server.CheckpointSteps = 0
		if every%(2*time.Millisecond) == 0 { // many occur between a report and its harvests
			every = time.Millisecond + every%(10*time.Millisecond)
		}
	}
	c.epochs = []int{1, 2}[:1+rng.IntN(2)]
	cut := c.s.options.Cut
	if cut.Once {
		c.epochs = c.epochs[:1]
	}
	c.cfg.Data.Synthetic.Rows = max(5, c.cfg.Data.Synthetic.Rows>>cut.Halves)
	c.cfg.Model.Epochs = c.epochs[0]
	c.extras()
	c.roles = []string{theSwitch, theServer}
	for _, w := range c.cfg.Workers {
		c.roles = append(c.roles, workerName(w.ID))
	}
	c.cfg.SetDefaults()
	if err := c.cfg.Validate(); err != nil {
		return err
	}
	c.mistaken = c.misread()
	err := makeHotSet(&c.cfg)
	if err != nil {
		return err
	}
	if err := c.besides(); err != nil {
		return err
	}
	if c.accounts, err = newAccounts(c); err != nil || !sync {
		return err
	}
	for _, epochs := range c.epochs {
		cfg := c.cfg
		cfg.Model.Epochs = epochs
		want, err := reference(&cfg, c.guest)
		if err != nil {
			return err
		}
		c.want = append(c.want, want)
	}
	return nil
}

func (c *clusterLife) live() (ClusterResult, error) {
	s := c.s
	s.began, s.kicked = time.Now(), make(chan struct{}, 1)
	s.trace("seed %d: %+v\n", s.options.Seed, s.plan)
	if c.mistaken != "" {
		s.fail("%s", c.mistaken)
	}
	s.net = &network{s: s, hosts: map[netip.AddrPort]*host{}, cut: map[[2]*host]int{}, bursts: map[[2]*host]int{}}
	c.tcp = &tcp{s: s, listeners: map[netip.AddrPort]*listener{}, count: map[string]int{}}
	c.disk = newDisk(s.named("disk"))
	for _, role := range c.roles {
		s.newHost(role, netip.AddrPortFrom(c.addressOf(role), framePort).String())
	}
	for _, role := range c.roles {
		s.after(time.Duration(s.schedule.IntN(50))*time.Millisecond, func() { c.start(role) })
	}
	c.trouble()
	c.neighbour.settle()
	s.run(func() bool { return c.phase == len(c.epochs) })
	c.end()
	c.result.Lives = 1
	c.result.Steps, c.result.Virtual, c.result.Digest = s.step, time.Since(s.began), s.digest.Sum64()
	c.result.Traffic = s.net.count
	return c.result, s.failure
}

func (c *clusterLife) addressOf(role string) netip.Addr {
	switch role {
	case theSwitch:
		return c.cfg.Switch.Address
	case theServer:
		return c.cfg.Server.Address
	}
	for _, w := range c.cfg.Workers {
		if workerName(w.ID) == role {
			return w.Address
		}
	}
	panic("simulation: no " + role)
}

func (c *clusterLife) hostOf(a netip.Addr) *host {
	return c.s.net.hosts[netip.AddrPortFrom(a, framePort)]
}

// start starts a role, unless it runs or the training is over.
func (c *clusterLife) start(role string) {
	if c.procs[role] != nil || c.s.over || c.finished[role] {
		return
	}
	c.started[role]++
	c.result.Starts++
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{c: c, role: role, name: fmt.Sprintf("%s@%d", role, c.started[role]), host: c.hostOf(c.addressOf(role)), cancel: cancel}
	p.host.down = false
	c.procs[role] = p
	if role == theServer {
		c.serving++
	}
	p.serving = c.serving
	c.s.tell("%s starts\n", p.name)
	cfg := c.cfg
	cfg.Model.Epochs = c.epochs[c.phase]
	if c.started[role] == 1 && c.wrong[role] != "" {
		p.wrong = c.wrong[role]
		c.result.Wrong++
		mistakes[p.wrong](&cfg)
	}
	env := node.Env{Config: &cfg, Log: slog.New(slog.DiscardHandler), Machine: p.machine(), Ready: func() { p.ready, p.serving = true, c.serving }}
	if c.s.out != nil {
		env.Log = slog.New(slog.NewTextHandler(logWriter{p}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: noTime}))
	}
	go func() {
		var weights string
		err := p.run(ctx, env, &weights)
		cancel()
		c.s.mu.Lock()
		p.ended, p.err, p.weights = true, err, weights
		c.s.mu.Unlock()
		c.s.kick()
	}()
}

func (p *process) run(ctx context.Context, env node.Env, weights *string) error {
	switch p.role {
	case theSwitch:
		return node.RunSwitch(ctx, env)
	case theServer:
		r, err := node.RunServer(ctx, env)
		if err == nil {
			*weights = r.WeightsSHA256
		}
		return err
	}
	id := env.Config.Workers[slices.IndexFunc(env.Config.Workers, func(w cluster.Worker) bool { return workerName(w.ID) == p.role })].ID
	if id == p.c.guest {
		return p.guest(ctx, env)
	}
	_, err := node.RunWorker(ctx, env, node.WorkerOptions{ID: id})
	return err
}

// machine is the machine of a process.
func (p *process) machine() node.Machine {
	c := p.c
	m := node.Machine{
		Listen: func(_ context.Context, at netip.AddrPort) (net.Listener, error) { return c.tcp.listen(p, at) },
		Client: p.clientOptions(),
		Server: p.serverOptions(),
		Link: func(netip.AddrPort) (link.Link, error) {
			if p.dead.Load() {
				return nil, errGone
			}
			p.link = c.s.open(p.host)
			p.link.act.name = p.name
			return p.link, nil
		},
		Gate:    func() { p.link.Enter() },
		Plane:   func(plane aggregator.Plane) aggregator.Plane { return watchedPlane{plane, p, map[string]int{}} },
		Store:   func(store *ps.Store) { c.accounts.opens(p, store) },
		Flushed: func() { c.accounts.flushes(p) },
		Turn:    func(what string) { p.turn(what, nil, time.Time{}) },
		Random:  &lockedReader{s: c.s, from: seeded(c.s.named("random of " + p.name))},
	}
	if p.role == theServer {
		m.Disk = machineDisk{c.disk, p}
	}
	return m
}

// collect processes everything since the last call. All goroutines are blocked.
func (c *clusterLife) collect() {
	if c == nil {
		return
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.tcp.collect()
	for c.moments[byWrites] < c.writes {
		c.moment(byWrites)
	}
	for _, role := range c.roles {
		p := c.procs[role]
		if p != nil && p.wrong != "" && p.ready && !p.dead.Load() {
			c.s.fail("%s trains, although its %s is not that of the others", p.name, p.wrong)
		}
		if p != nil && p.ended {
			delete(c.procs, role)
			c.ends(p)
		}
	}
	c.neighbour.collect()
	for _, p := range c.outside {
		if p.ended && p.err != nil && !c.s.over {
			c.s.fail("%v", p.err)
		}
	}
}

// ends is the operator's reaction to a process that has ended by itself, or was killed.
func (c *clusterLife) ends(p *process) {
	s := c.s
	if s.over {
		return
	}
	s.tell("%s ends, killed %v, with an error %v\n", p.name, p.dead.Load(), p.err != nil)
	if s.out != nil && p.err != nil {
		_, _ = logWriter{p}.Write(fmt.Appendf(nil, "%v\n", p.err))
	}
	again := func() {
		s.after(time.Duration(10+s.schedule.IntN(1000))*time.Millisecond, func() { c.start(p.role) })
	}
	if p.dead.Load() {
		again()
	} else if p.err != nil && !c.explained(p) {
		s.fail("%s ends, which %v does not explain: %v", p.name, c.happened, p.err)
	}
	switch {
	case p.role == theSwitch:
		switch {
		case p.dead.Load():
		case !p.stopped || p.err != nil:
			s.fail("the switch ends: %v", p.err)
		default:
			again()
		}
	case p.role != theServer:
		if p.err == nil && !p.dead.Load() {
			c.accounts.finished(p)
			if p.serving < c.serving || c.procs[theServer] == nil {
				again() // its server has ended
				return
			}
			c.finished[p.role] = true
			c.done = append(c.done, p)
		} else if !p.dead.Load() {
			again()
		}
	case p.dead.Load() || p.err != nil:
		if !p.dead.Load() {
			c.accounts.left(p)
		}
		c.done = nil
		clear(c.finished) // the next server continues from its checkpoint, with all workers
		for _, role := range c.roles {
			s.after(time.Duration(10+s.schedule.IntN(1000))*time.Millisecond, func() { c.start(role) })
		}
	case c.cfg.Job.Sync && p.weights != c.want[c.phase]:
		s.fail("training of %d epochs ends with the weights %s, not %s", c.epochs[c.phase], p.weights, c.want[c.phase])
	default:
		c.accounts.completed(p.weights, c.done)
		c.accounts.left(p)
		c.done = nil
		c.complete()
	}
}

// complete begins the next phase of the training, if there is one.
func (c *clusterLife) complete() {
	c.result.Trainings++
	c.phase++
	if c.phase == len(c.epochs) {
		return
	}
	clear(c.finished)
	for _, role := range c.roles[1:] {
		if p := c.procs[role]; p != nil {
			c.kill(p, false) // a worker that did not learn of the end
		} else {
			c.s.after(time.Duration(10+c.s.schedule.IntN(1000))*time.Millisecond, func() { c.start(role) })
		}
	}
}

// kill ends a process at once; with silence, also its machine.
func (c *clusterLife) kill(p *process, silence bool) {
	if p.dead.Load() {
		return
	}
	p.dead.Store(true)
	c.tcp.kill(p, silence)
	p.host.resume()
	if p.link != nil {
		p.link.crashed = true
		p.link.inbox, p.link.queue = nil, nil
	}
	p.host.down = silence
	p.cancel()
}

// opens checks what a server finds on its disk.
func (c *clusterLife) opens(path string, data []byte) {
	d := c.disk
	for i := len(d.whole) - 1; i >= max(0, d.durable); i-- {
		if bytes.Equal(d.whole[i], data) {
			c.result.Resumes++
			return
		}
	}
	c.s.fail("%s is not one that was written whole, or is older than the newest that was durable", path)
}

// dawdle lets time pass during a process's disk access.
func (c *clusterLife) dawdle(p *process) {
	c.s.mu.Lock()
	c.writes++
	c.s.mu.Unlock()
	a := c.s.newActor(p.name+" at its disk", p.host)
	a.sleep("writes", 100*time.Microsecond)
	a.leave()
}

// end ends all processes.
func (c *clusterLife) end() {
	s := c.s
	s.over = true
	s.mu.Lock()
	for _, role := range c.roles {
		if p := c.procs[role]; p != nil {
			c.kill(p, false)
		}
	}
	for _, p := range slices.Concat(c.outside, c.neighbour.running()) {
		c.kill(p, false)
	}
	s.mu.Unlock()
	clear(s.net.cut)
	for range 10_000 {
		s.end()
		s.mu.Lock()
		c.tcp.collect()
		running := 0
		for _, p := range slices.AppendSeq(slices.Concat(c.outside, c.neighbour.running()), maps.Values(c.procs)) {
			if !p.ended {
				running++
			}
		}
		s.mu.Unlock()
		if running == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
		for s.events.due(time.Now()) {
			s.events.pop().fn()
			synctest.Wait()
		}
	}
	panic("simulation: processes do not end: " + s.state())
}
