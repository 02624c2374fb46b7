// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// drawConfig decides the cluster's training, and its final weights.
func (c *clusterLife) drawConfig(rng *rand.Rand) error {
	p := &c.plan
	p.window, p.stripes = 512, 1+rng.IntN(3)
	p.payload = 600
	sync := rng.IntN(2) == 0 || c.options.Kinds == Rewind
	if p.burst > 0 { // a long one silences a flow for seconds
		c.happened = Loss
	}
	p.inbox = max(p.inbox, 64)
	p.trouble = time.Duration(float64(10*time.Millisecond) * portable.Pow(2000, rng.Float64()))
	address := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, host}) }
	every := time.Duration(1+rng.IntN(2000)) * time.Millisecond
	c.cfg = cluster.Config{
		Backend: cluster.BackendUDP, Port: framePort,
		Job: cluster.Job{ID: job, HotSet: filepath.Join(c.dir, "hot.libra"), Sync: sync},
		Switch: cluster.Switch{
			Address: address(1), Control: netip.AddrPortFrom(address(1), controlPort),
			Stripes: p.stripes, LaneAligned: rng.IntN(2) == 0,
		},
		Server: cluster.Server{
			Host: cluster.Host{Address: address(2)}, Control: netip.AddrPortFrom(address(2), controlPort),
			Checkpoint: checkpointPath, CheckpointEvery: &every, CheckpointSteps: uint64(rng.IntN(4)),
		},
		Model: cluster.Model{
			Kind: "fm", Factors: 1 + rng.IntN(3), Batch: 5 + rng.IntN(20), Seed: rng.Uint64() >> 1,
			LearningRate: 0.05, InitialAccumulator: 1e-4, InitScale: 0.1,
		},
		Data: cluster.Data{Synthetic: &cluster.Synthetic{
			Rows: 40 + rng.IntN(120), Seed: rng.Uint64() >> 1, HotShare: 0.6, Hot: 1000,
		}},
	}
	for id := range p.workers {
		w := cluster.Worker{ID: uint16(id + 1), Host: cluster.Host{Address: address(byte(id + 3))}}
		c.cfg.Workers = append(c.cfg.Workers, w)
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
	cut := c.options.Cut
	if cut.Once {
		c.epochs = c.epochs[:1]
	}
	c.cfg.Data.Synthetic.Rows = max(5, c.cfg.Data.Synthetic.Rows>>cut.Halves)
	c.cfg.Model.Epochs = c.epochs[0]
	c.addIndependentProperties()
	c.roles = []string{theSwitch, theServer}
	c.addStandbys()
	for _, w := range c.cfg.Workers {
		c.roles = append(c.roles, workerName(w.ID))
	}
	c.cfg.SetDefaults()
	if err := c.cfg.Validate(); err != nil {
		return err
	}
	c.mistaken = c.readBadFile()
	err := makeHotSet(&c.cfg, c.options.padKeys)
	if err != nil {
		return err
	}
	if err := c.addNeighbour(); err != nil {
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

// makeHotSet writes the hot set of a training. pad may add keys before those of its hot rows, of
// some floats each.
func makeHotSet(c *cluster.Config, pad func(keys []uint64, dim int) []uint64) error {
	model, err := node.Model(c.Model)
	if err != nil {
		return err
	}
	src, err := node.OpenSource(c, data.Shard{})
	if err != nil {
		return err
	}
	defer src.Close()
	hot, err := node.BuildHotSet(src, node.HotSetOptions{Rate: 1, Dim: model.Dim(), Rows: 60})
	if err != nil {
		return err
	}
	var keys, counts []uint64
	for row := range uint32(hot.Len()) {
		keys, counts = append(keys, hot.Key(row)), append(counts, hot.Count(row))
	}
	keys = pad(keys, model.Dim())
	counts = slices.Concat(make([]uint64, len(keys)-len(counts)), counts) // the keys that are added come first
	if hot, err = packer.NewHotSet(model.Dim(), keys, counts, hot.Meta()); err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := hot.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(c.Job.HotSet, b.Bytes(), 0o600)
}

// reference returns the required final weights of the training.
func reference(c *cluster.Config, guest uint16) (string, error) {
	cfg, err := node.StoreConfig(c)
	if err != nil {
		return "", err
	}
	store, err := ps.New(cfg)
	if err != nil {
		return "", err
	}
	training, err := node.TrainConfig(c)
	if err != nil {
		return "", err
	}
	// From the file, whatever the processes read from it.
	training.Model = train.FM{Factors: c.Model.Factors, L2: float32(c.Model.L2)}
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		return "", err
	}
	if training.Code, err = node.Coding(c, hot); err != nil {
		return "", err
	}
	var sources []data.Source
	for _, w := range c.Workers {
		if w.ID == guest {
			continue // it pushes nothing
		}
		src, err := node.OpenSource(c, c.Shard(w.ID))
		if err != nil {
			return "", err
		}
		defer src.Close()
		sources = append(sources, src)
	}
	if _, err := train.Reference(context.Background(), store, sources, training); err != nil {
		return "", err
	}
	sum := store.Hash()
	return hex.EncodeToString(sum[:]), nil
}
