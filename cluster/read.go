// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
	"github.com/libra-ina/libra/wire"
)

// Read reads and checks a configuration file with a parameter server, after applying changes to it.
// Errors name the file, the field and, if the file has it, its line.
func Read(path string, changes ...func(*Config)) (*Config, error) {
	return readFile(path, parse, changes...)
}

// ReadAny is [Read], and also takes a file of jobs without a parameter server
// ([Config.Serverless]).
func ReadAny(path string, changes ...func(*Config)) (*Config, error) {
	return readFile(path, parseAny, changes...)
}

func readFile(path string, parse func([]byte, ...func(*Config)) (*Config, error),
	changes ...func(*Config)) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cluster configuration: %w", err)
	}
	c, err := parse(data, changes...)
	if err != nil {
		return nil, fmt.Errorf("cluster configuration %s: %w", path, err)
	}
	return c, nil
}

func parse(data []byte, changes ...func(*Config)) (*Config, error) {
	c, err := parseAny(data, changes...)
	if c != nil && c.Serverless() {
		err = errors.Join(err, errServerless)
	}
	return c, err
}

func parseAny(data []byte, changes ...func(*Config)) (*Config, error) {
	var c Config
	written, err := decode(data, &c, "a cluster")
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		change(&c)
	}
	zeros := c.writtenZeros(written)
	c.setDefaults(!c.Serverless())
	return &c, errors.Join(zeros, located(c.Validate(), written))
}

// decode strictly reads a file that describes something: an error names the line of an unknown
// field or an invalid value. It also returns the file as it is written.
func decode(data []byte, into any, something string) (*yaml.Node, error) {
	var written yaml.Node
	if err := yaml.Unmarshal(data, &written); err != nil {
		problem := strings.TrimPrefix(err.Error(), "yaml: ")
		if !strings.HasPrefix(problem, "line ") {
			problem = "line 1: " + problem // which the parser omits
		}
		return nil, fmt.Errorf("this is not YAML: %s", problem)
	}
	if len(written.Content) == 0 {
		return nil, errors.New("it is empty")
	}
	if err := written.Decode(new(any)); err != nil { // before all aliases, some of them dangling, are resolved
		if twice := (*yaml.TypeError)(nil); errors.As(err, &twice) {
			return nil, errors.New(strings.Join(twice.Errors, "\n"))
		}
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if errs := checkNode(written.Content[0], reflect.TypeOf(into).Elem(), ""); errs != nil {
		return nil, errors.Join(errs...)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("a second YAML document follows: %s is described by one, so remove what comes after the line ---", something)
	}
	return &written, nil
}

// Write writes the configuration to a file that Read accepts.
func (c *Config) Write(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("cluster configuration: %w", err)
	}
	return os.WriteFile(path, data, 0o644)
}

// SetDefaults fills in omitted fields. Read does it too.
func (c *Config) SetDefaults() { c.setDefaults(true) }

// setDefaults is SetDefaults, with or without those of the model, which jobs without a parameter
// server do not have.
func (c *Config) setDefaults(model bool) {
	c.Model.setKindOfDim()
	for _, d := range c.defaults() {
		if model || !strings.HasPrefix(d.field, "model.") {
			d.set()
		}
	}
	c.eachServer(func(_ string, s *Server) {
		if s.Checkpoint != "" && !c.ofSteps() && s.CheckpointEvery == nil {
			every := DefaultCheckpointEvery
			s.CheckpointEvery = &every
		}
	})
}

// setKindOfDim sets kind and factors where the file has only the number of floats of a row: for
// programs that train through agents, servers hold the rows of the model that has such.
func (m *Model) setKindOfDim() {
	switch {
	case m.Dim == 1 && m.Kind == "" && m.Factors == 0:
		m.Kind = "lr"
	case m.Dim > 1 && (m.Kind == "" || m.Kind == "fm") && m.Factors == 0:
		m.Kind, m.Factors = "fm", m.Dim-1
	}
}

// A fallback is a field whose zero value stands for a default.
type fallback struct {
	field   string
	value   any // the default
	missing func() bool
	set     func()
}

// ofField is the fallback of a field whose home is package settings.
func ofField[T comparable](p *T, f settings.Field[T]) fallback {
	return defaultOf(f.Path, p, f.Default)
}

func defaultOf[T comparable](field string, p *T, value T) fallback {
	var zero T
	missing := func() bool { return *p == zero }
	return fallback{field, value, missing, func() {
		if missing() {
			*p = value
		}
	}}
}

// defaults lists the fields that have a default, which depend on the other fields.
func (c *Config) defaults() []fallback {
	plane := PlaneXDP
	if c.Backend == BackendUDP {
		plane = PlaneModel
	}
	list := []fallback{
		defaultOf("backend", &c.Backend, BackendAFXDP),
		defaultOf("port", &c.Port, wire.DefaultPort),
		defaultOf("silence", &c.Silence, 12*time.Second),
		ofField(&c.Job.Arithmetic, settings.Arithmetic),
		defaultOf("job.replay_mib", &c.Job.ReplayMiB, DefaultReplayMiB),
		defaultOf("switch.plane", &c.Switch.Plane, plane),
		{"switch.slots", "the default", func() bool { return c.Switch.Slots == 0 }, func() {}}, // the daemon's
		ofField(&c.Model.Kind, settings.Model),
		{"model.dim", "the rows of kind and factors", func() bool { return c.Model.Dim == 0 }, func() {}},
		ofField(&c.Model.Task, settings.Task),
		ofField(&c.Model.Optimizer, settings.Optimizer),
		ofField(&c.Model.Batch, settings.Batch),
		ofField(&c.Model.Epochs, settings.Epochs),
	}
	for i := range c.Standbys {
		missing := func() bool { return c.Standbys[i].Slots == 0 }
		list = append(list, fallback{fmt.Sprintf("standbys[%d].slots", i), "the default", missing, func() {}}) // the daemon's
		if c.Backend != BackendUDP && c.Switch.Plane != PlaneP4 {
			list = append(list, defaultOf(fmt.Sprintf("standbys[%d].xdp_mode", i), &c.Standbys[i].XDPMode, "auto"))
		}
	}
	for i := range c.Switches {
		missing := func() bool { return c.Switches[i].Slots == 0 }
		list = append(list, fallback{fmt.Sprintf("switches[%d].slots", i), "the default", missing, func() {}}) // SlotsOf's
		if s := &c.Switches[i]; s.Control.IsValid() && c.Backend != BackendUDP && c.Switch.Plane != PlaneP4 {
			list = append(list, defaultOf(fmt.Sprintf("switches[%d].xdp_mode", i), &s.XDPMode, "auto"))
		}
	}
	c.eachServer(func(field string, s *Server) {
		list = append(list, defaultOf(field+".max_rows", &s.MaxRows, ps.DefaultMaxRows))
		if s.Checkpoint != "" && c.ofSteps() { // without such checkpoints the servers might have none of the same step
			list = append(list, defaultOf(field+".checkpoint_steps", &s.CheckpointSteps, DefaultCheckpointSteps))
		}
	})
	if c.Switch.Plane == PlaneP4 {
		list = append(list,
			// package p4's
			fallback{"switch.p4.election", "the default", func() bool { return c.Switch.P4.Election == 0 }, func() {}},
			defaultOf("switch.stripes", &c.Switch.Stripes, 1),
			defaultOf("switch.lane_aligned", &c.Switch.LaneAligned, true))
	} else {
		list = append(list, defaultOf("switch.stripes", &c.Switch.Stripes, wire.DefaultStripes))
	}
	if c.Switch.Plane != PlaneP4 {
		silence := control.DefaultLease
		if len(c.Standbys) > 0 {
			silence = DefaultSilence
		}
		list = append(list, defaultOf("switch.silence", &c.Switch.Silence, silence))
	}
	if c.Backend != BackendUDP && c.Switch.Plane != PlaneP4 {
		list = append(list, defaultOf("switch.xdp_mode", &c.Switch.XDPMode, "auto"))
	}
	if !c.Job.Sync {
		list = append(list,
			ofField(&c.Job.Harvest, settings.Harvest),
			ofField(&c.Job.Staleness, settings.Staleness),
			ofField(&c.Job.Accumulate, settings.Accumulate))
	}
	if !c.ofSteps() {
		c.eachServer(func(field string, s *Server) {
			list = append(list, defaultOf(field+".rejoin", &s.Rejoin, DefaultRejoin))
		})
	}
	if c.Model.Kind == "" || c.Model.Kind == "fm" {
		list = append(list,
			ofField(&c.Model.Factors, settings.Factors),
			ofField(&c.Model.InitScale, settings.InitScale))
	}
	if c.Model.Optimizer != ps.None.String() {
		list = append(list, ofField(&c.Model.LearningRate, settings.LearningRate))
	}
	if c.Model.Optimizer == "" || c.Model.Optimizer == ps.Adagrad.String() {
		list = append(list, ofField(&c.Model.InitialAccumulator, settings.InitialAccumulator))
	}
	if s := c.Data.Synthetic; s != nil {
		list = append(list,
			defaultOf("data.synthetic.rows", &s.Rows, data.DefaultRows),
			defaultOf("data.synthetic.hot", &s.Hot, data.DefaultHot),
			defaultOf("data.synthetic.hot_share", &s.HotShare, data.DefaultHotShare))
	}
	return list
}

// writtenZeros refuses an explicit zero in a field whose zero value stands for a default: it would
// become another value.
func (c *Config) writtenZeros(file *yaml.Node) error {
	var errs []error
	for _, d := range c.defaults() {
		if node := given(file, d.field); node != nil && d.missing() {
			errs = append(errs, fmt.Errorf("line %d: %s: %q is not a valid value: leave the field out for %v, or give another",
				node.Line, d.field, node.Value, d.value))
		}
	}
	return errors.Join(errs...)
}

// given finds the value that the file gives to a field, nil if it is omitted or null.
func given(file *yaml.Node, field string) *yaml.Node {
	if n := lookup(file, steps(field)); n != nil && !isNull(n) {
		return n
	}
	return nil
}

// steps splits the path of a field.
func steps(field string) []string {
	return strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// mergeKey is the key of mappings from which a mapping inherits fields that it does not have itself
// (https://yaml.org/type/merge.html).
const mergeKey = "<<"

// lookup finds the value of a field in a YAML document, nil if it is omitted.
func lookup(node *yaml.Node, path []string) *yaml.Node {
	switch {
	case node.Kind == yaml.DocumentNode:
		return lookup(node.Content[0], path)
	case node.Kind == yaml.AliasNode:
		return lookup(node.Alias, path)
	case len(path) == 0:
		return node
	case node.Kind == yaml.SequenceNode:
		if i, err := strconv.Atoi(path[0]); err == nil && i < len(node.Content) {
			return lookup(node.Content[i], path[1:])
		}
		return nil
	case node.Kind != yaml.MappingNode:
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == path[0] {
			return lookup(node.Content[i+1], path[1:])
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value != mergeKey {
			continue
		}
		merged := node.Content[i+1 : i+2]
		if merged[0].Kind == yaml.SequenceNode {
			merged = merged[0].Content
		}
		for _, m := range merged { // the first one that has it counts
			if found := lookup(m, path); found != nil {
				return found
			}
		}
	}
	return nil
}
