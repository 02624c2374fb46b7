// SPDX-License-Identifier: Apache-2.0

// Package cluster reads the configuration file of the processes of a Libra cluster.
//
// One YAML file describes the whole cluster: the job, the aggregator, the parameter server, the
// workers and their training. Each process finds its own part in it, so the same file can be copied
// to every host.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/wire"
)

// Backends that carry frames.
const (
	BackendAFXDP = "afxdp" // AF_XDP sockets and the XDP aggregator
	BackendUDP   = "udp"   // kernel UDP sockets and the Go aggregator
)

// Planes that aggregate.
const (
	PlaneXDP   = "xdp"   // the XDP program, with AF_XDP sockets
	PlaneModel = "model" // the Go aggregator, with kernel UDP sockets
	PlaneP4    = "p4"    // a P4 switch, with AF_XDP sockets
)

// Defaults of omitted fields; package settings has those of training.
const (
	// DefaultRejoin is how long a lost worker may take to join again.
	DefaultRejoin = control.DefaultRejoin

	// DefaultSilence is how long an aggregator may be silent if there are standbys. Without, the job
	// does not come back to it, so it has control.DefaultLease.
	DefaultSilence = time.Second

	// DefaultCheckpointEvery is the time between two checkpoints.
	DefaultCheckpointEvery = time.Minute
	// DefaultCheckpointSteps is the number of steps between two checkpoints of several servers with
	// job.sync.
	DefaultCheckpointSteps = 1000
)

// Config describes a cluster.
type Config struct {
	// Backend is "afxdp" or "udp".
	Backend string `yaml:"backend"`
	// Port is the UDP port of all frames; 0 means wire.DefaultPort.
	Port uint16 `yaml:"port,omitempty"`
	// Silence is how long a peer may be silent before pushes and pulls fail.
	Silence time.Duration `yaml:"silence,omitempty"`
	// Capture, if set, is a folder into which every worker and the server record their frames:
	// worker-1.pcapng and so on, and ps.pcapng, or ps-0.pcapng and so on.
	Capture string `yaml:"capture,omitempty"`

	Telemetry Telemetry `yaml:"telemetry,omitempty"`

	Codec Codec `yaml:"codec,omitempty"`

	Job    Job    `yaml:"job"`
	Switch Switch `yaml:"switch"`
	// Standbys are the aggregators at which the job goes on, in this order, when that of Switch is
	// lost.
	Standbys []Standby `yaml:"standbys,omitempty"`
	// Switches, if any, are all switches of the hosts' network, that of Switch among them.
	Switches []FabricSwitch `yaml:"switches,omitempty"`
	Server   Server         `yaml:"server,omitempty"`
	Servers  []Server       `yaml:"servers,omitempty"` // several, instead of Server
	Workers  []Worker       `yaml:"workers"`
	Model    Model          `yaml:"model,omitempty"`
	Data     Data           `yaml:"data,omitempty"`
	Faults   Faults         `yaml:"faults,omitempty"`
	TLS      TLS            `yaml:"tls,omitempty"`
}

// Job is the part on which aggregator, server and workers must agree. Package fields explains what
// has no comment here, and has the defaults, for which zeros stand.
type Job struct {
	// ID of the job, 0 to 255.
	ID uint16 `yaml:"id"`
	// IDs are more numbers at the switch, among which, with ID, the hot set is divided; or, with Plan,
	// those for shares that a switch gets while it has another.
	IDs []uint16 `yaml:"ids,omitempty,flow"`
	// Plan, if set, divides the hot set among Switches: PlanAuto, or a file of 'libra plan --json' on
	// the host of server 0.
	Plan string `yaml:"plan,omitempty"`
	// HotSet is the path of the hot-set file.
	HotSet     string `yaml:"hot_set"`
	Arithmetic string `yaml:"arithmetic,omitempty"`
	// Exponent is the binary exponent of one unit of an exact or fixed sum. Nil means the
	// arithmetic's default.
	Exponent *int `yaml:"exponent,omitempty"`
	Sync     bool `yaml:"sync,omitempty"`
	// Harvest and HarvestFrames are without Sync, with which every step is harvested when all
	// workers have pushed.
	Harvest time.Duration `yaml:"harvest,omitempty"`
	// HarvestFrames, if not 0, also makes a harvest due after this number of frames, if that is
	// earlier.
	HarvestFrames uint64 `yaml:"harvest_frames,omitempty"`
	Staleness     int    `yaml:"staleness,omitempty"`
	Accumulate    int    `yaml:"accumulate,omitempty"`
	// ReplayMiB is the size of the log of frames that a worker or agent keeps in case the aggregator
	// is lost.
	ReplayMiB int `yaml:"replay_mib,omitempty"`
}

// Switch is the machine whose data plane aggregates.
type Switch struct {
	// Address is the destination of hot frames.
	Address netip.Addr `yaml:"address"`
	// Control is the TCP address of the switch daemon.
	Control netip.AddrPort `yaml:"control"`
	// Plane is "xdp", "model" or "p4"; empty means the backend's.
	Plane string `yaml:"plane,omitempty"`
	// P4 describes a P4 switch.
	P4 P4 `yaml:"p4,omitempty"`
	// Interfaces that the XDP program is attached to.
	Interfaces []string `yaml:"interfaces,omitempty"`
	// XDPMode is "native", "generic" or "auto".
	XDPMode string `yaml:"xdp_mode,omitempty"`
	// Slots is the number of slots of all jobs together; 0 means control.DefaultSlots.
	Slots int `yaml:"slots,omitempty"`
	// ThreadedNAPI receives frames in kernel threads, one for each queue of the interfaces, which
	// share the CPUs fairly with the daemon.
	ThreadedNAPI bool `yaml:"threaded_napi,omitempty"`
	// Stripes is the largest number of stripes in a hot frame.
	Stripes int `yaml:"stripes,omitempty"`
	// Silence is how long the aggregator may be out of reach, or send no heartbeat, until the job goes
	// on without it.
	Silence time.Duration `yaml:"silence,omitempty"`
	// Evacuate makes the job go on at a standby when the aggregator drops too many frames.
	Evacuate bool `yaml:"evacuate,omitempty"`
	// LaneAligned makes workers place every pair in the lane of its register, as a P4 switch
	// requires.
	LaneAligned bool `yaml:"lane_aligned,omitempty"`
}

// Standby is another machine that can aggregate. Its plane, stripes and lanes are those of Switch,
// and its fields are those of Switch with the same names.
type Standby struct {
	Address      netip.Addr     `yaml:"address"`
	Control      netip.AddrPort `yaml:"control"`
	Interfaces   []string       `yaml:"interfaces,omitempty"`
	XDPMode      string         `yaml:"xdp_mode,omitempty"`
	Slots        int            `yaml:"slots,omitempty"`
	ThreadedNAPI bool           `yaml:"threaded_napi,omitempty"`
}

// FabricSwitch is a switch of the hosts' network, for plans of which switch sums what. The other
// settings of Switch are also its.
type FabricSwitch struct {
	// Name of the switch in this file.
	Name string `yaml:"name"`
	// Address is the destination of hot frames, unless the switch is Plain.
	Address netip.Addr `yaml:"address"`
	// Links are the names of switches to which cables lead. A cable may be listed at one of its ends
	// or at both.
	Links []string `yaml:"links,omitempty,flow"`
	// Slots is the number of slots that plans may use; 0 means those of Switch if it is the same
	// machine, or else control.DefaultSlots.
	Slots int `yaml:"slots,omitempty"`
	// Parent, if set, is the name of the switch that takes the harvests instead of the server.
	Parent string `yaml:"parent,omitempty"`
	// Plain switches forward only.
	Plain bool `yaml:"plain,omitempty"`

	// What its daemon needs; the machine of Switch has these there.

	Control      netip.AddrPort `yaml:"control"`
	Interfaces   []string       `yaml:"interfaces,omitempty,flow"`
	XDPMode      string         `yaml:"xdp_mode,omitempty"`
	ThreadedNAPI bool           `yaml:"threaded_napi,omitempty"`
}

// P4 is a P4 switch. Its fields are those of p4.Options.
type P4 struct {
	// Runtime is its P4Runtime address: host:port, or unix:path.
	Runtime string `yaml:"runtime,omitempty"`
	// Device is its device ID at that address.
	Device uint64 `yaml:"device,omitempty"`
	// Election is the daemon's election ID; 0 means p4.Options' default.
	Election uint64 `yaml:"election,omitempty"`
	// Ports with hosts.
	Ports []uint32 `yaml:"ports,omitempty,flow"`
	// Hosts are the ports of hosts by their MAC address. Frames for unknown addresses go to all Ports.
	Hosts map[string]uint32 `yaml:"hosts,omitempty"`
	// Info and Config are the files of a compiled program; if omitted, the daemon's built-in one.
	Info   string `yaml:"p4info,omitempty"`
	Config string `yaml:"config,omitempty"`
	// Replace allows the daemon to replace a different program.
	Replace bool `yaml:"replace,omitempty"`
}

// Host is one end host.
type Host struct {
	// Address of the host's frames.
	Address netip.Addr `yaml:"address"`
	// Interface and Queue of its AF_XDP socket.
	Interface string `yaml:"interface,omitempty"`
	Queue     int    `yaml:"queue,omitempty"`
	// At is the name of the switch to which the host is cabled, if the file lists Switches.
	At string `yaml:"at,omitempty"`
}

// Server is a parameter server.
type Server struct {
	Host `yaml:",inline"`
	// Control is the TCP address of its control service.
	Control netip.AddrPort `yaml:"control"`
	// Checkpoint is a file with the weights and the training progress, from which a restarted
	// server continues.
	Checkpoint string `yaml:"checkpoint,omitempty"`
	// CheckpointEvery is the time between two checkpoints; nil means DefaultCheckpointEvery, 0
	// means no periodic checkpoints.
	CheckpointEvery *time.Duration `yaml:"checkpoint_every,omitempty"`
	// CheckpointSteps, if not 0, makes a synchronous job also write a checkpoint after this number
	// of steps. For several servers, 0 means DefaultCheckpointSteps.
	CheckpointSteps uint64 `yaml:"checkpoint_steps,omitempty"`
	// Rejoin is how long a lost worker may take to join again; 0 means DefaultRejoin. With job.sync
	// and several servers none may.
	Rejoin time.Duration `yaml:"rejoin,omitempty"`
	// MaxRows is ps.Config.MaxRows of the server; 0 means ps.DefaultMaxRows.
	MaxRows int `yaml:"max_rows,omitempty"`
}

// Worker is one worker.
type Worker struct {
	// ID is the worker's sender number, from 1 on.
	ID   uint16 `yaml:"id"`
	Host `yaml:",inline"`
}

// Model describes the trained model. Package fields explains what has no comment here, and has the
// defaults, for which zeros stand.
type Model struct {
	Kind    string `yaml:"kind"`
	Task    string `yaml:"task,omitempty"`
	Factors int    `yaml:"factors,omitempty"`
	// Dim, if not 0, is the number of floats of a row, from which follow kind and factors.
	Dim                int     `yaml:"dim,omitempty"`
	Optimizer          string  `yaml:"optimizer,omitempty"`
	LearningRate       float64 `yaml:"learning_rate,omitempty"`
	InitialAccumulator float64 `yaml:"initial_accumulator,omitempty"`
	InitScale          float64 `yaml:"init_scale,omitempty"`
	// L2 is the weight of the ridge penalty: half of it times the squared
	// weights of a mini-batch's rows, without the bias, is added to the
	// mini-batch's mean loss.
	L2     float64 `yaml:"l2,omitempty"`
	Batch  int     `yaml:"batch,omitempty"`
	Epochs int     `yaml:"epochs,omitempty"`
	Seed   uint64  `yaml:"seed,omitempty"`
}

// Data describes the training rows of workers: a libfm or libsvm file, plain or gzip, or a
// synthetic log. A job in which all hosts take part by agents needs none.
type Data struct {
	Train string `yaml:"train,omitempty"`
	// Test, if set, is a file of held-out rows on the server's host, with which the server
	// evaluates the weights after each epoch.
	Test      string     `yaml:"test,omitempty"`
	Synthetic *Synthetic `yaml:"synthetic,omitempty"`
	Window    int        `yaml:"window,omitempty"`
}

// HasTest reports whether there are held-out rows.
func (d Data) HasTest() bool { return d.Test != "" || d.Synthetic != nil && d.Synthetic.Test > 0 }

// Synthetic describes a generated click log.
type Synthetic struct {
	// Rows is the number of used rows of the log, from row First on.
	Rows  int    `yaml:"rows"`
	First int    `yaml:"first,omitempty"`
	Seed  uint64 `yaml:"seed"`
	// HotShare is the share of updates that go to the Hot hottest features.
	HotShare float64 `yaml:"hot_share"`
	Hot      int     `yaml:"hot"`
	// Test is the number of held-out rows, which follow those of training.
	Test int `yaml:"test,omitempty"`
}

// Faults are injected at every worker, in both directions: probabilities that a frame is lost,
// duplicated or delayed past later ones.
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

// Any reports whether any fault is configured.
func (f Faults) Any() bool { return f.Loss > 0 || f.Duplicate > 0 || f.Reorder > 0 }

// arithmetics by their names in the configuration.
var arithmetics = map[string]aggregator.Arithmetic{}

func init() {
	for _, a := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed} {
		arithmetics[a.String()] = a
	}
}

// Config returns the arithmetic of the job's sums and the exponent of its unit, 0 for lut.
func (j Job) Config() aggregator.JobConfig {
	c := aggregator.JobConfig{Arithmetic: arithmetics[j.Arithmetic]}
	c.Exp = aggregator.DefaultExp(c.Arithmetic)
	if j.Exponent != nil {
		c.Exp = *j.Exponent
	}
	return c
}

// MTU is the MTU for the frames of all hosts: the one that every path has, or more if hot frames
// need it. It comes from the cluster's configuration and not from the interfaces, whose MTUs may
// differ, or exceed that of the path between them.
func (c *Config) MTU() int { return max(wire.DefaultMTU, wire.HotMTU(c.Switch.Stripes)) }

// AllServers lists the parameter servers by index.
func (c *Config) AllServers() []Server {
	if c.Serverless() {
		return nil
	}
	if len(c.Servers) == 0 {
		return []Server{c.Server}
	}
	return c.Servers
}

// ForServer returns the configuration for the server with an index: Server is that one.
func (c *Config) ForServer(index int) (*Config, error) {
	all := c.AllServers()
	if index < 0 || index >= len(all) {
		return nil, fmt.Errorf("no server %d in the cluster configuration, which has %d: their indices begin with 0", index,
			len(all))
	}
	own := *c
	own.Server = all[index]
	return &own, nil
}

// eachServer calls f with each server and its field.
func (c *Config) eachServer(f func(field string, s *Server)) {
	if len(c.Servers) == 0 && !c.Serverless() {
		f("server", &c.Server)
	}
	for i := range c.Servers {
		f(fmt.Sprintf("servers[%d]", i), &c.Servers[i])
	}
}

// AddressField returns the field that has the address of frames of a switch or server, or "".
func (c *Config) AddressField(of netip.Addr) (field string) {
	c.eachServer(func(one string, s *Server) {
		if s.Address == of {
			field = one + ".address"
		}
	})
	for i, s := range c.Switches {
		if s.Address == of {
			field = fmt.Sprintf("switches[%d].address", i)
		}
	}
	for at, s := range c.Aggregators() {
		switch {
		case s.Address != of:
		case at == 0:
			field = "switch.address"
		default:
			field = fmt.Sprintf("standbys[%d].address", at-1)
		}
	}
	return field
}

// Worker returns the worker with the given ID.
func (c *Config) Worker(id uint16) (Worker, error) {
	for _, w := range c.Workers {
		if w.ID == id {
			return w, nil
		}
	}
	return Worker{}, fmt.Errorf("no worker %d in the cluster configuration; the workers there: %v", id, c.WorkerIDs())
}

// WorkerIDs lists the workers' sender numbers.
func (c *Config) WorkerIDs() []uint16 {
	var ids []uint16
	for _, w := range c.Workers {
		ids = append(ids, w.ID)
	}
	return ids
}

// Shard returns the part of the rows that a worker trains.
func (c *Config) Shard(worker uint16) data.Shard {
	return data.Shard{
		Index: slices.IndexFunc(c.Workers, func(w Worker) bool { return w.ID == worker }),
		Count: len(c.Workers),
	}
}
