// Package cluster reads the configuration file that every process of a Libra
// cluster is started with.
//
// One YAML file describes the whole cluster: the job, the aggregator, the
// parameter server, the workers and what they train. Each process finds its
// own part in it, so the same file can be copied to every host.
package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/wire"
)

// Backends that carry frames.
const (
	BackendAFXDP = "afxdp" // AF_XDP sockets and the XDP aggregator
	BackendUDP   = "udp"   // kernel UDP sockets and the Go aggregator
)

// DefaultHarvest is the time between two harvests by default.
const DefaultHarvest = 20 * time.Millisecond

// Config describes a cluster.
type Config struct {
	// Backend is "afxdp" or "udp".
	Backend string `yaml:"backend"`
	// Port is the UDP port of all frames; 0 means wire.DefaultPort.
	Port uint16 `yaml:"port,omitempty"`
	// Silence is how long a silent peer is waited for before pushes and pulls
	// fail.
	Silence time.Duration `yaml:"silence,omitempty"`
	// Capture, if set, is a folder into which every worker and the server
	// record their frames: worker-1.pcapng and so on, and ps.pcapng.
	Capture string `yaml:"capture,omitempty"`

	Job     Job      `yaml:"job"`
	Switch  Switch   `yaml:"switch"`
	Server  Server   `yaml:"server"`
	Workers []Worker `yaml:"workers"`
	Model   Model    `yaml:"model"`
	Data    Data     `yaml:"data"`
	Faults  Faults   `yaml:"faults,omitempty"`
	TLS     TLS      `yaml:"tls,omitempty"`
}

// Job is what aggregator, server and workers must agree on.
type Job struct {
	// ID of the job, 0 to 255.
	ID uint16 `yaml:"id"`
	// HotSet is the path of the hot-set file.
	HotSet string `yaml:"hot_set"`
	// Arithmetic in which the aggregator adds: "exact", "lut" or "fixed".
	Arithmetic string `yaml:"arithmetic,omitempty"`
	// Exponent makes one unit of an exact or fixed sum 2^Exponent. Nil means
	// fixedpoint.DefaultExp or aggregator.DefaultFixedExp.
	Exponent *int `yaml:"exponent,omitempty"`
	// Sync makes all workers wait for each other after each iteration.
	Sync bool `yaml:"sync,omitempty"`
	// Harvest is the time between two harvests when Sync is off. With Sync,
	// every step is harvested when all workers have pushed.
	Harvest time.Duration `yaml:"harvest,omitempty"`
	// HarvestFrames, if not 0, makes a harvest due after so many frames, too,
	// if that comes first.
	HarvestFrames uint64 `yaml:"harvest_frames,omitempty"`
}

// Switch is the machine whose data plane aggregates.
type Switch struct {
	// Address that hot frames are sent to.
	Address netip.Addr `yaml:"address"`
	// Control is the TCP address of Libra_s.
	Control netip.AddrPort `yaml:"control"`
	// Interfaces that the XDP program is attached to.
	Interfaces []string `yaml:"interfaces,omitempty"`
	// XDPMode is "native", "generic" or "auto".
	XDPMode string `yaml:"xdp_mode,omitempty"`
	// Slots is how many slots all jobs together may have; 0 means
	// control.DefaultSlots.
	Slots int `yaml:"slots,omitempty"`
	// ThreadedNAPI receives frames in kernel threads, one for each queue of the
	// interfaces, which share the CPUs fairly with the daemon.
	ThreadedNAPI bool `yaml:"threaded_napi,omitempty"`
	// Stripes is the largest number of stripes in a hot frame.
	Stripes int `yaml:"stripes,omitempty"`
	// LaneAligned makes workers place every pair in the lane of its register,
	// as a P4 switch needs it.
	LaneAligned bool `yaml:"lane_aligned,omitempty"`
}

// Host is one end host.
type Host struct {
	// Address of the host's frames.
	Address netip.Addr `yaml:"address"`
	// Interface and Queue of its AF_XDP socket.
	Interface string `yaml:"interface,omitempty"`
	Queue     int    `yaml:"queue,omitempty"`
}

// Server is the parameter server.
type Server struct {
	Host `yaml:",inline"`
	// Control is the TCP address of its control service.
	Control netip.AddrPort `yaml:"control"`
	// Checkpoint is a file that holds the weights when training ends, and from
	// which a restarted server continues.
	Checkpoint string `yaml:"checkpoint,omitempty"`
}

// Worker is one worker.
type Worker struct {
	// ID is the worker's sender number, from 1 on.
	ID   uint16 `yaml:"id"`
	Host `yaml:",inline"`
}

// Model is what is trained.
type Model struct {
	// Kind is "fm" or "lr".
	Kind string `yaml:"kind"`
	// Factors of a factorisation machine.
	Factors int `yaml:"factors,omitempty"`
	// Optimizer is "adagrad" or "sgd".
	Optimizer    string  `yaml:"optimizer,omitempty"`
	LearningRate float64 `yaml:"learning_rate,omitempty"`
	// InitialAccumulator is what Adagrad's sums of squares start with.
	InitialAccumulator float64 `yaml:"initial_accumulator,omitempty"`
	// InitScale bounds the initial latent weights.
	InitScale float64 `yaml:"init_scale,omitempty"`
	// L2 is the weight of the squared norm in the loss.
	L2 float64 `yaml:"l2,omitempty"`
	// Batch is the number of rows in a worker's iteration.
	Batch  int `yaml:"batch,omitempty"`
	Epochs int `yaml:"epochs,omitempty"`
	// Seed of initial weights and of the order of rows.
	Seed uint64 `yaml:"seed,omitempty"`
}

// Data says where the training rows come from: a libfm or libsvm file, plain
// or gzip, or the synthetic click log where Train is empty.
type Data struct {
	Train     string     `yaml:"train,omitempty"`
	Synthetic *Synthetic `yaml:"synthetic,omitempty"`
}

// Synthetic is the click log for a machine that has no data.
type Synthetic struct {
	// Rows of the log that are used, from row First on.
	Rows  int    `yaml:"rows"`
	First int    `yaml:"first,omitempty"`
	Seed  uint64 `yaml:"seed"`
	// HotShare is the share of updates that go to the Hot hottest features.
	HotShare float64 `yaml:"hot_share"`
	Hot      int     `yaml:"hot"`
}

// Faults are injected at every worker, in both directions: probabilities of a
// frame being lost, doubled or delayed past later ones.
type Faults struct {
	Loss      float64 `yaml:"loss,omitempty"`
	Duplicate float64 `yaml:"duplicate,omitempty"`
	Reorder   float64 `yaml:"reorder,omitempty"`
	Seed      uint64  `yaml:"seed,omitempty"`
}

// TLS names the PEM files of mutual TLS on control connections; without them
// they are plain TCP.
type TLS struct {
	CA   string `yaml:"ca,omitempty"`
	Cert string `yaml:"cert,omitempty"`
	Key  string `yaml:"key,omitempty"`
}

// Any reports whether any fault is asked for.
func (f Faults) Any() bool { return f.Loss > 0 || f.Duplicate > 0 || f.Reorder > 0 }

// Validate reports the first probability that is none.
func (f Faults) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"loss", f.Loss}, {"duplicate", f.Duplicate}, {"reorder", f.Reorder}} {
		if !(p.value >= 0 && p.value < 1) {
			return fmt.Errorf("faults.%s: probability %g is not in [0, 1)", p.name, p.value)
		}
	}
	return nil
}

// arithmetics by their names in the configuration.
var arithmetics = map[string]aggregator.Arithmetic{}

func init() {
	for _, a := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed} {
		arithmetics[a.String()] = a
	}
}

// Config returns how the aggregator represents the job's sums: the arithmetic
// and the exponent of its unit, 0 for lut.
func (j Job) Config() aggregator.JobConfig {
	c := aggregator.JobConfig{Arithmetic: arithmetics[j.Arithmetic]}
	switch {
	case j.Exponent != nil:
		c.Exp = *j.Exponent
	case c.Arithmetic == aggregator.Exact:
		c.Exp = fixedpoint.DefaultExp
	case c.Arithmetic == aggregator.Fixed:
		c.Exp = aggregator.DefaultFixedExp
	}
	return c
}

// Read reads and checks a configuration file. Errors name the file and, where
// the file is not valid YAML or has an unknown field, the line.
func Read(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cluster configuration: %w", err)
	}
	var c Config
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("cluster configuration %s: %w", path, err)
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("cluster configuration %s: %w", path, err)
	}
	return &c, nil
}

// Write writes the configuration to a file that Read accepts.
func (c *Config) Write(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("cluster configuration: %w", err)
	}
	return os.WriteFile(path, data, 0o644)
}

// Worker returns the worker with the given ID.
func (c *Config) Worker(id uint16) (Worker, error) {
	for _, w := range c.Workers {
		if w.ID == id {
			return w, nil
		}
	}
	return Worker{}, fmt.Errorf("no worker %d in the cluster configuration, which has %d workers", id, len(c.Workers))
}

// SetDefaults fills in what was left out. Read does it too.
func (c *Config) SetDefaults() {
	set(&c.Backend, BackendAFXDP)
	set(&c.Port, wire.DefaultPort)
	set(&c.Silence, 10*time.Second)
	set(&c.Job.Harvest, DefaultHarvest)
	set(&c.Job.Arithmetic, aggregator.Exact.String())
	set(&c.Switch.XDPMode, "auto")
	set(&c.Switch.Stripes, wire.MaxStripes)
	set(&c.Model.Kind, "fm")
	set(&c.Model.Optimizer, "adagrad")
	set(&c.Model.Epochs, 1)
}

func set[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// Validate reports every mistake in the configuration, each with the field's
// name and what is allowed.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.Backend != BackendAFXDP && c.Backend != BackendUDP {
		bad("backend: %q is neither %q nor %q", c.Backend, BackendAFXDP, BackendUDP)
	}
	if c.Silence < 0 {
		bad("silence: %v is negative", c.Silence)
	}
	if c.Job.ID > 255 {
		bad("job.id: %d is not in 0..255", c.Job.ID)
	}
	if c.Job.HotSet == "" {
		bad("job.hot_set: the path of a hot-set file is required (make one with 'libra hotset build')")
	}
	if _, known := arithmetics[c.Job.Arithmetic]; !known {
		bad("job.arithmetic: %q is none of exact, lut, fixed", c.Job.Arithmetic)
	} else if c.Job.Arithmetic == aggregator.LUT.String() && c.Job.Exponent != nil {
		bad("job.exponent: %d, but lut arithmetic has none", *c.Job.Exponent)
	} else if _, err := fixedpoint.NewFormat(c.Job.Config().Exp); err != nil {
		bad("job.exponent: %w", err)
	}
	if h := c.Job.Harvest; h < time.Microsecond || h > time.Hour { // microseconds in 32 bits
		bad("job.harvest: %v is not in %v..%v", h, time.Microsecond, time.Hour)
	}
	if !c.Switch.Address.IsValid() {
		bad("switch.address: an IP address is required")
	}
	if !c.Switch.Control.IsValid() {
		bad("switch.control: an IP:port is required")
	}
	if c.Backend == BackendAFXDP && len(c.Switch.Interfaces) == 0 {
		bad("switch.interfaces: at least one interface is required with the afxdp backend")
	}
	if m := c.Switch.XDPMode; m != "auto" && m != "native" && m != "generic" {
		bad("switch.xdp_mode: %q is none of auto, native, generic", m)
	}
	if c.Switch.Slots < 0 {
		bad("switch.slots: %d is negative", c.Switch.Slots)
	}
	if c.Switch.ThreadedNAPI && c.Backend != BackendAFXDP {
		bad("switch.threaded_napi: only with the afxdp backend, which has interfaces")
	}
	if n := c.Switch.Stripes; n < 1 || n > wire.MaxStripes {
		bad("switch.stripes: %d is not in 1..%d", n, wire.MaxStripes)
	}
	if !c.Server.Control.IsValid() {
		bad("server.control: an IP:port is required")
	}
	c.checkHost("server", c.Server.Host, bad)
	c.checkWorkers(bad)
	c.checkModel(bad)
	if c.Data.Train == "" && c.Data.Synthetic == nil {
		bad("data: either train (a file) or synthetic is required")
	}
	errs = append(errs, c.Faults.Validate())
	return errors.Join(errs...)
}

func (c *Config) checkHost(field string, h Host, bad func(string, ...any)) {
	if !h.Address.IsValid() {
		bad("%s.address: an IP address is required", field)
	}
	if c.Backend == BackendAFXDP && h.Interface == "" {
		bad("%s.interface: required with the afxdp backend", field)
	}
	if h.Queue < 0 {
		bad("%s.queue: %d is negative", field, h.Queue)
	}
}

func (c *Config) checkWorkers(bad func(string, ...any)) {
	if len(c.Workers) == 0 {
		bad("workers: at least one is required")
	}
	seen := map[uint16]bool{}
	for i, w := range c.Workers {
		field := fmt.Sprintf("workers[%d]", i)
		if w.ID == 0 {
			bad("%s.id: workers are numbered from 1", field)
		}
		if seen[w.ID] {
			bad("%s.id: %d is used twice", field, w.ID)
		}
		seen[w.ID] = true
		c.checkHost(field, w.Host, bad)
	}
}

func (c *Config) checkModel(bad func(string, ...any)) {
	m := c.Model
	switch {
	case m.Kind != "fm" && m.Kind != "lr":
		bad("model.kind: %q is neither \"fm\" nor \"lr\"", m.Kind)
	case m.Factors < 0:
		bad("model.factors: %d is negative", m.Factors)
	case m.Optimizer != "adagrad" && m.Optimizer != "sgd":
		bad("model.optimizer: %q is neither \"adagrad\" nor \"sgd\"", m.Optimizer)
	case m.LearningRate < 0:
		bad("model.learning_rate: %g is negative", m.LearningRate)
	case m.InitialAccumulator < 0:
		bad("model.initial_accumulator: %g is negative", m.InitialAccumulator)
	case m.InitScale < 0:
		bad("model.init_scale: %g is negative", m.InitScale)
	case m.Batch < 0:
		bad("model.batch: %d is negative", m.Batch)
	case m.Epochs < 1:
		bad("model.epochs: %d is less than 1", m.Epochs)
	}
}

// WorkerIDs lists the workers' sender numbers.
func (c *Config) WorkerIDs() []uint16 {
	var ids []uint16
	for _, w := range c.Workers {
		ids = append(ids, w.ID)
	}
	return ids
}

// Shard returns which part of the rows a worker trains.
func (c *Config) Shard(worker uint16) workload.Shard {
	return workload.Shard{
		Index: slices.IndexFunc(c.Workers, func(w Worker) bool { return w.ID == worker }),
		Count: len(c.Workers),
	}
}
