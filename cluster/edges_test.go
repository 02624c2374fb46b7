// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

// complete returns a configuration without mistakes.
func complete() *Config {
	c, err := parse([]byte(`
job: {id: 1, hot_set: h, sync: true}
switch: {address: 10.0.0.1, control: "10.0.0.1:7700", interfaces: [eth1, eth2]}
server: {address: 10.0.0.2, interface: eth0, control: "10.0.0.2:7700", checkpoint: w}
workers: [{id: 1, address: 10.0.0.3, interface: eth0}]
data: {train: t}
`))
	if err != nil {
		panic(err)
	}
	return c
}

// Mistakes are found where they begin: at the smallest value that is one, and next to each other.
func TestSmallestMistakes(t *testing.T) {
	least := -time.Nanosecond
	for field, change := range map[string]func(*Config){
		"silence":                 func(c *Config) { c.Silence = least },
		"server.checkpoint_every": func(c *Config) { c.Server.CheckpointEvery = &least },
		"server.rejoin":           func(c *Config) { c.Job.Sync = false; c.SetDefaults(); c.Server.Rejoin = least },
		"switch.interfaces[1]":    func(c *Config) { c.Switch.Interfaces = []string{"eth1", "eth1"} },
	} {
		c := complete()
		change(c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, space := range " \t\n\v\f\r" {
		c := complete()
		c.Server.Interface = "a" + string(space)
		if err := c.Validate(); err == nil {
			t.Errorf("%q is taken for an interface", c.Server.Interface)
		}
	}
}

// There may be as many servers as frames can tell apart.
func TestMostServers(t *testing.T) {
	for _, n := range []int{wire.MaxServers, wire.MaxServers + 1} {
		var file strings.Builder
		fmt.Fprint(&file, "backend: udp\njob: {id: 1, hot_set: h}\nswitch: {address: 10.0.0.1, control: \"10.0.0.1:7700\"}\nworkers: [{id: 1, address: 10.0.0.3}]\ndata: {train: t}\nservers:\n")
		for i := range n {
			fmt.Fprintf(&file, "  - {address: 10.0.1.%d, control: \"10.0.1.%d:7700\"}\n", i+1, i+1)
		}
		if _, err := parse([]byte(file.String())); (err == nil) != (n == wire.MaxServers) {
			t.Errorf("%d servers: %v", n, err)
		}
	}
}

// Several servers write a checkpoint after as many steps as the file says, every step included.
func TestCheckpointEveryStep(t *testing.T) {
	c := complete()
	c.Servers, c.Server = []Server{c.Server, c.Server}, Server{}
	for i := range c.Servers {
		c.Servers[i].CheckpointSteps = 1
	}
	c.SetDefaults()
	if got := c.Servers[1].CheckpointSteps; got != 1 {
		t.Errorf("a checkpoint after %d steps, want 1", got)
	}
}

// Hosts compare exactly these fields, and each shows a change.
func TestAgreementTellsOfEveryField(t *testing.T) {
	changes := map[string]func(*Config){
		"port":                      func(c *Config) { c.Port++ },
		"switch.stripes":            func(c *Config) { c.Switch.Stripes = 25 },
		"job.arithmetic":            func(c *Config) { c.Job.Arithmetic = "lut" },
		"job.exponent":              func(c *Config) { e := -9; c.Job.Exponent = &e },
		"job.ids":                   func(c *Config) { c.Job.IDs = []uint16{2} },
		"job.plan":                  func(c *Config) { c.Job.Plan = PlanAuto },
		"job.sync":                  func(c *Config) { c.Job.Sync = false },
		"workers":                   func(c *Config) { c.Workers[0].ID++ },
		"servers":                   func(c *Config) { c.Servers = make([]Server, 2) },
		"model.kind":                func(c *Config) { c.Model.Kind = "lr" },
		"model.task":                func(c *Config) { c.Model.Task = "regression" },
		"model.factors":             func(c *Config) { c.Model.Factors++ },
		"model.optimizer":           func(c *Config) { c.Model.Optimizer = "sgd" },
		"model.learning_rate":       func(c *Config) { c.Model.LearningRate *= 2 },
		"model.initial_accumulator": func(c *Config) { c.Model.InitialAccumulator *= 2 },
		"model.init_scale":          func(c *Config) { c.Model.InitScale *= 2 },
		"model.l2":                  func(c *Config) { c.Model.L2 = 1 },
		"model.batch":               func(c *Config) { c.Model.Batch++ },
		"model.epochs":              func(c *Config) { c.Model.Epochs++ },
		"model.seed":                func(c *Config) { c.Model.Seed++ },
		"telemetry.sample":          func(c *Config) { c.Telemetry.Sample = new(int) },
		"data.window":               func(c *Config) { c.Data.Window++ },
		"codec.bound":               func(c *Config) { c.Codec.Bound = new(10) },
		"codec.scale":               func(c *Config) { c.Codec = Codec{new(10), 3} },
		DataField: func(c *Config) {
			c.Data = Data{Synthetic: &Synthetic{Rows: 5}}
		},
	}
	fields := slices.Sorted(maps.Keys(complete().Agreement()))
	if want := slices.Sorted(maps.Keys(changes)); !slices.Equal(slices.Sorted(slices.Values(append(fields, DataField))), want) {
		t.Errorf("the fields are %v, want %v", fields, want)
	}
	before := complete().Agreement()
	for field, change := range changes {
		c := complete()
		change(c)
		if after := c.Agreement(); after[field] == before[field] {
			t.Errorf("%s: %q says the same after a change", field, after[field])
		}
	}
}
