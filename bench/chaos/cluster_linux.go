// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// The hosts of a bed, all at a bridge that aggregates nothing.
const (
	aggregators = 2 // the first hosts
	serverHost  = aggregators
	firstWorker = serverHost + 1
)

const (
	controlPort   = 7700
	telemetryPort = 7790
	factors       = 3
	// silence is long: what this machine delays is no fault.
	silence = 20 * time.Second
)

// config returns the cluster file of a life on a bed.
func (l *Life) config(b *testbed.Bed, dir string) *cluster.Config {
	every, sample := 500*time.Millisecond, 0
	at := func(n *testbed.Node) cluster.Host { return cluster.Host{Address: n.IP, Interface: n.Interface} }
	control := func(n *testbed.Node) netip.AddrPort { return netip.AddrPortFrom(n.IP, controlPort) }
	c := &cluster.Config{
		Backend: cluster.BackendAFXDP, Silence: silence,
		Telemetry: cluster.Telemetry{Port: telemetryPort, Sample: &sample},
		Job:       cluster.Job{ID: 1, HotSet: filepath.Join(dir, "hot.libra"), Sync: true, ReplayMiB: l.LogMiB},
		Server: cluster.Server{Host: at(b.Host(serverHost)), Control: control(b.Host(serverHost)),
			Checkpoint: filepath.Join(dir, "weights.libra"), CheckpointEvery: &every},
		Model: cluster.Model{Kind: "fm", Factors: factors, Batch: l.Batch, Epochs: l.Epochs, Seed: l.Seed},
		Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: l.Rows, Seed: l.Seed, HotShare: 0.6,
			Hot: 2 * l.HotRows}},
		Faults: cluster.Faults{Loss: l.Loss, Duplicate: l.Duplicate, Reorder: l.Reorder},
	}
	if c.Faults.Any() {
		c.Faults.Seed = l.Seed
	}
	for i, h := range b.Hosts()[:aggregators] {
		if i == 0 {
			c.Switch = cluster.Switch{Address: h.IP, Control: control(h), Interfaces: []string{h.Interface}}
			continue
		}
		c.Standbys = append(c.Standbys,
			cluster.Standby{Address: h.IP, Control: control(h), Interfaces: []string{h.Interface}})
	}
	for i, h := range b.Hosts()[firstWorker:] {
		c.Workers = append(c.Workers, cluster.Worker{ID: uint16(1 + i), Host: at(h)})
	}
	c.SetDefaults()
	return c
}

// prepare writes the hot set and the cluster file, and returns the path of the latter.
func (l *Life) prepare(c *cluster.Config, dir string) (path string, err error) {
	src, err := node.OpenSource(c, data.Shard{})
	if err != nil {
		return "", err
	}
	defer src.Close()
	hot, err := node.BuildHotSet(src, node.HotSetOptions{Dim: 1 + factors, Rows: l.HotRows})
	if err != nil {
		return "", err
	}
	if err := packer.SaveHotSet(c.Job.HotSet, hot); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "cluster.yaml")
	return path, c.Write(path)
}

// reference trains in this process, and returns the hash of the weights. It calls progress now and
// then.
func reference(ctx context.Context, c *cluster.Config, progress func()) (string, error) {
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
	training.Progress = func(train.Progress) { progress() }
	var sources []data.Source
	for _, w := range c.Workers {
		src, err := node.OpenSource(c, c.Shard(w.ID))
		if err != nil {
			return "", err
		}
		defer src.Close()
		sources = append(sources, src)
	}
	if _, err := train.Reference(ctx, store, sources, training); err != nil {
		return "", fmt.Errorf("the reference: %w", err)
	}
	sum := store.Hash()
	return hex.EncodeToString(sum[:]), nil
}
