// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/wire"
)

// A field that stands for a default when it is zero refuses a zero that is
// written: it would become the default.
func TestWrittenZeroIsNoDefault(t *testing.T) {
	for field, c := range map[string]struct{ old, new string }{
		"backend":                   {"backend: udp", `backend: ""`},
		"port":                      {"backend: udp", "backend: udp\nport: 0"},
		"silence":                   {"backend: udp", "backend: udp\nsilence: 0s"},
		"job.arithmetic":            {"id: 3", `id: 3, arithmetic: ""`},
		"job.harvest":               {"20ms", "0s"},
		"job.replay_mib":            {"20ms", "20ms, replay_mib: 0"},
		"job.staleness":             {"20ms", "20ms, staleness: 0"},
		"job.accumulate":            {"20ms", "20ms, accumulate: 0"},
		"switch.xdp_mode":           {udpSwitch, afxdpSwitch + `xdp_mode: "", `},
		"switch.slots":              {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, slots: 0"},
		"switch.stripes":            {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 0"},
		"server.max_rows":           {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, max_rows: 0"},
		"model.kind":                {"kind: lr", `kind: ""`},
		"model.factors":             {"kind: lr", "kind: fm, factors: 0"},
		"model.dim":                 {"kind: lr", "dim: 0"},
		"model.optimizer":           {"kind: lr", `kind: lr, optimizer: ""`},
		"model.learning_rate":       {"kind: lr", "kind: lr, learning_rate: 0"},
		"model.initial_accumulator": {"kind: lr", "kind: lr, initial_accumulator: 0.0"},
		"model.init_scale":          {"kind: lr", "kind: fm, init_scale: 0"},
		"model.batch":               {"kind: lr", "kind: lr, batch: 0"},
		"model.epochs":              {"kind: lr", "kind: lr, epochs: 0"},
		"data.synthetic.rows":       {"train: train.libfm", "synthetic: {rows: 0}"},
		"data.synthetic.hot":        {"train: train.libfm", "synthetic: {hot: 0}"},
		"data.synthetic.hot_share":  {"train: train.libfm", "synthetic: {hot_share: 0}"},
	} {
		t.Run(field, func(t *testing.T) {
			text := strings.Replace(valid, c.old, c.new, 1)
			_, err := Read(write(t, text))
			if err == nil || !strings.Contains(err.Error(), field+": ") || !strings.Contains(err.Error(), "leave the field out for") {
				t.Errorf("error %v; want it to name %s and the remedy", err, field)
			}
		})
	}
}

// A mapping may take fields over from another (<<): a zero among them is written too.
func TestMergedZeroIsNoDefault(t *testing.T) {
	for name, model := range map[string]string{
		"mapping":           "kind: lr, <<: {learning_rate: 0}",
		"sequence":          "kind: lr, <<: [{epochs: 3}, {learning_rate: 0, epochs: 4}]",
		"merged by another": "kind: lr, <<: {epochs: 3, <<: {learning_rate: 0}}",
	} {
		_, err := Read(write(t, strings.Replace(valid, "kind: lr", model, 1)))
		if err == nil || !strings.Contains(err.Error(), "model.learning_rate: ") || !strings.Contains(err.Error(), "leave the field out for") {
			t.Errorf("%s: error %v; want it to name model.learning_rate and the remedy", name, err)
		}
	}
	for name, model := range map[string]string{
		"its own value":   "kind: lr, learning_rate: 0.5, <<: {learning_rate: 0}",
		"an earlier part": "kind: lr, <<: [{learning_rate: 0.5}, {learning_rate: 0}]",
	} {
		c, err := Read(write(t, strings.Replace(valid, "kind: lr", model, 1)))
		if err != nil || c.Model.LearningRate != 0.5 {
			t.Errorf("%s does not count: %v", name, err)
		}
	}
}

// A zero that has a meaning of its own is taken as it is.
func TestWrittenZeroIsTaken(t *testing.T) {
	text := strings.Replace(valid, "id: 3", "id: 0, arithmetic: fixed, exponent: 0, harvest_frames: 0", 1)
	text = strings.Replace(text, "kind: lr", "kind: lr, l2: 0, seed: 0", 1)
	text = strings.Replace(text, "control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint_every: 0s, queue: 0", 1)
	c, err := Read(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Job.Config().Exp; got != 0 {
		t.Errorf("exponent %d, want 0", got)
	}
	if got := *c.Server.CheckpointEvery; got != 0 {
		t.Errorf("a checkpoint every %v, want none", got)
	}
}

func TestDefaults(t *testing.T) {
	text := strings.Replace(valid, "model: {kind: lr}", "", 1)
	text = strings.Replace(text, ", harvest: 20ms", "", 1)
	text = strings.Replace(text, "control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint: weights.libra", 1)
	c, err := Read(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	want := Model{Kind: "fm", Task: "classification", Factors: 24, Optimizer: "adagrad", LearningRate: 0.05, InitialAccumulator: 1e-4, InitScale: 0.01, Batch: 64, Epochs: 1}
	if diff := cmp.Diff(want, c.Model); diff != "" {
		t.Error(diff)
	}
	if c.Port != wire.DefaultPort || c.Silence != 12*time.Second || c.Job.Harvest != 20*time.Millisecond || *c.Server.CheckpointEvery != time.Minute || c.Server.MaxRows != 1<<26 || c.Switch.Slots != 0 {
		t.Errorf("%+v", c)
	}
	// What the default of one field is depends on others.
	for text, zero := range map[string]func(*Config) bool{
		strings.Replace(valid, "harvest: 20ms", "sync: true", 1): func(c *Config) bool { return c.Job.Harvest == 0 },
		valid: func(c *Config) bool {
			return c.Model.Factors == 0 && c.Model.InitScale == 0 && c.Model.InitialAccumulator == 1e-4
		},
		strings.Replace(valid, "kind: lr", "kind: fm, optimizer: sgd", 1): func(c *Config) bool { return c.Model.InitialAccumulator == 0 && c.Model.Factors == 24 },
		strings.NewReplacer("harvest: 20ms", "sync: true", "kind: lr", "kind: lr, optimizer: none", "data: {train: train.libfm}", "").Replace(valid): func(c *Config) bool {
			return c.Model.LearningRate == 0 && c.Model.InitialAccumulator == 0
		},
	} {
		c, err := Read(write(t, text))
		if err != nil {
			t.Fatal(err)
		}
		if !zero(c) {
			t.Errorf("%+v", c)
		}
	}
	for arithmetic, exp := range map[string]int{"exact": -46, "fixed": -20, "lut": 0} {
		if got := (Job{Arithmetic: arithmetic}).Config(); got.Exp != exp || got.Arithmetic.String() != arithmetic {
			t.Errorf("%s: %+v", arithmetic, got)
		}
	}
}
