// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// addIndependentProperties decides what a seed may give a cluster without a change of the rest of
// its life: a worker that runs another program, the number format, the codec, the model's penalty,
// and processes that are once started with a different configuration.
func (c *clusterLife) addIndependentProperties() {
	rng, cfg := c.options.named("extras"), &c.cfg // under another name, seeds would have other lives
	alone, steps, rest := rng.IntN(4) > 0, rng.IntN(8), time.Duration(rng.IntN(20_000))*time.Microsecond
	if cfg.Job.Sync && !alone {
		c.guest = uint16(len(cfg.Workers) + 1)
		address := cfg.Server.Address.As4()
		address[3] += byte(c.guest)
		cfg.Workers = append(cfg.Workers, cluster.Worker{ID: c.guest, Host: cluster.Host{Address: netip.AddrFrom4(address)}})
		// No more than the others take in their first training.
		c.guestSteps = uint64(min(steps, cfg.Data.Synthetic.Rows/len(cfg.Workers)/cfg.Model.Batch))
		c.guestRest = rest
		c.result.Guests++
	}
	if rng := c.options.named("exponent"); rng.IntN(2) == 0 { // 0 is no default: most gradients are less than a unit
		cfg.Job.Exponent = new([]int{-40, -30, -20, 0}[rng.IntN(4)])
	}
	if rng := c.options.named("codec"); rng.IntN(3) == 0 {
		cfg.Codec = cluster.Codec{Bound: new(1 + rng.IntN(14)), Scale: rng.IntN(12)}
	}
	if c.options.named("penalty").IntN(2) == 0 {
		cfg.Model.L2 = 0.01
	}
	for _, w := range cfg.Workers {
		if field := fields[rng.IntN(len(fields))]; rng.IntN(6) == 0 && w.ID != c.guest {
			c.wrong[workerName(w.ID)] = field
		}
	}
}

// mistakes are wrong values in a configuration, by field name.
var mistakes = map[string]func(*cluster.Config){
	"job.sync":     func(c *cluster.Config) { c.Job.Sync = !c.Job.Sync },
	"model.epochs": func(c *cluster.Config) { c.Model.Epochs++ },
	"model.batch":  func(c *cluster.Config) { c.Model.Batch++ },
	"model.seed":   func(c *cluster.Config) { c.Model.Seed ^= 1 },
}

var fields = slices.Sorted(maps.Keys(mistakes))
