// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"io/fs"
	"math"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/simulation/world"
)

// jobPlan is what a seed chooses for the job of agents.
type jobPlan struct {
	sync    bool          // hosts take steps together
	weights bool          // the job has weights, and not only the sums of its steps
	framed  bool          // sums arrive in frames
	goal    uint64        // steps that the parties take
	parties []int         // on each host
	helpers int           // threads of a party, beside the one that ends its steps
	pace    time.Duration // the longest pause of a thread
	wrong   int           // one push in so many is refused for its contents; 0: none
	most    int           // pushes of a thread in a step
	buffer  uint64        // bytes of a session's buffer area at least, which bound what it has in flight
	keys    []uint64
}

// gradientUnit is what all gradients are multiples of. Of the sums alone, many gradients are
// smaller than the job's unit holds, so that hot rows travel as cold ones and the server adds
// without rounding.
func (p *jobPlan) gradientUnit() float32 {
	if p.weights {
		return 1
	}
	return 0x1p-50
}

// tooLarge is a gradient that is refused.
func (p *jobPlan) tooLarge() float32 {
	if p.weights {
		return 1 << 30
	}
	return float32(math.Inf(1))
}

// jobName is the job's name at the agents.
const jobName = "job"

// drawConfig decides the cluster and its job.
func (l *agentsLife) drawConfig(rng *rand.Rand) error {
	p := &l.plan
	p.window, p.payload, p.inbox, p.stripes = 512, 600, max(p.inbox, 64), min(p.stripes, 3)
	p.trouble = time.Duration(float64(10*time.Millisecond) * portable.Pow(1000, rng.Float64()))
	if p.burst > 0 {
		l.happened = Loss
	}
	kind := rng.IntN(4)
	pace := time.Duration(float64(200*time.Microsecond) * portable.Pow(100, rng.Float64()))
	l.of = jobPlan{
		sync: kind > 0, weights: kind < 2, framed: rng.IntN(3) > 0, goal: uint64(2 + rng.IntN(8)>>l.options.Cut.Halves),
		helpers: rng.IntN(3), most: 1 + rng.IntN(4)>>l.options.Cut.Halves,
		pace: pace, wrong: rng.IntN(2) * (8 + rng.IntN(40)),
		buffer: []uint64{0, 16 << 10, 64 << 10, 64 << 10}[rng.IntN(4)],
	}
	address := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, host}) }
	l.cfg = cluster.Config{
		Backend: cluster.BackendUDP, Port: framePort,
		Job: cluster.Job{ID: job, HotSet: filepath.Join(l.dir, "hot.libra"), Sync: l.of.sync},
		Switch: cluster.Switch{
			Address: address(1), Control: netip.AddrPortFrom(address(1), controlPort), Stripes: p.stripes,
			LaneAligned: rng.IntN(2) == 0,
		},
		Server: cluster.Server{Host: cluster.Host{Address: address(2)}, Control: netip.AddrPortFrom(address(2), controlPort)},
		Model:  cluster.Model{Kind: "lr", Optimizer: "none"},
	}
	if p.dim > 1 {
		l.cfg.Model.Kind, l.cfg.Model.Factors = "fm", p.dim-1
	}
	every := time.Duration(1+rng.IntN(300)) * time.Millisecond
	if l.of.weights {
		l.cfg.Model.Optimizer, l.cfg.Model.LearningRate = "sgd", 1
		l.cfg.Server.Checkpoint, l.cfg.Server.CheckpointEvery = checkpointPath, &every
	}
	if l.of.sync && l.of.weights {
		l.cfg.Server.CheckpointSteps = 1
	}
	if !l.of.sync {
		l.cfg.Job.Harvest = time.Duration(200+rng.IntN(30_000)) * time.Microsecond
	}
	for i := range p.workers {
		w := cluster.Worker{ID: uint16(i + 1), Host: cluster.Host{Address: address(byte(i + 3))}}
		l.cfg.Workers = append(l.cfg.Workers, w)
		n := 1 + rng.IntN(3)
		l.of.parties = append(l.of.parties, n)
		for k := range n {
			l.parties = append(l.parties, &party{l: l, host: agentName(w.ID), number: k, of: n})
		}
	}
	l.roles = []string{theSwitch, theServer}
	for _, w := range l.cfg.Workers {
		l.roles = append(l.roles, agentName(w.ID))
	}
	for k := range p.hot + p.cold {
		l.of.keys = append(l.of.keys, uint64(100+k))
	}
	hot, err := packer.NewHotSet(p.dim, l.options.padKeys(l.of.keys[:p.hot], p.dim), nil, packer.Meta{})
	if err != nil {
		return err
	}
	if err := packer.SaveHotSet(l.cfg.Job.HotSet, hot); err != nil {
		return err
	}
	if rng := l.options.named("codec"); rng.IntN(3) == 0 {
		// What is coded keeps to multiples of the unit, or becomes 0. Some gradients are too large for
		// codes.
		_, one := math.Frexp(float64(l.of.gradientUnit()))
		l.cfg.Codec = cluster.Codec{Bound: new(1 + rng.IntN(14)), Scale: 1 - one - 4 - rng.IntN(6)}
	}
	if l.code, err = node.Coding(&l.cfg, hot); err != nil {
		return err
	}
	l.cfg.SetDefaults()
	if err := l.cfg.Validate(); err != nil {
		return err
	}
	l.books = newStepBooks(l)
	return l.cfg.Write(l.clusterFile())
}

func (l *agentsLife) clusterFile() string { return filepath.Join(l.dir, "cluster.yaml") }

// plainDisk is a [world.DiskWatcher] that has nothing to check: lives of clusters check disks.
type plainDisk struct{}

func (plainDisk) Renamed(_ *world.Process, _ string, _ []byte, _, mode fs.FileMode) fs.FileMode {
	return mode
}
func (plainDisk) Opened(string, bool) {}
