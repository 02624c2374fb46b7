// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/wire"
)

// Validate reports every mistake in the configuration, each with the field's name and the allowed
// values.
func (c *Config) Validate() error {
	var v mistakes
	c.checkSwitch(&v)
	c.checkStandbys(&v)
	c.checkJob(&v)
	c.checkShares(&v)
	c.checkCodec(&v)
	c.checkServers(&v)
	c.checkWorkers(&v)
	c.checkAddresses(&v)
	c.checkFabric(&v)
	if c.Serverless() {
		c.checkServerless(&v)
	} else {
		c.checkModel(&v)
		c.checkData(&v)
	}
	if c.Backend != BackendAFXDP && c.Backend != BackendUDP {
		v.addMistake("backend: %q is neither %q nor %q", c.Backend, BackendAFXDP, BackendUDP)
	}
	c.checkTelemetry(&v)
	if c.Silence < 0 {
		v.addMistake("silence: %v is negative", c.Silence)
	}
	if t := c.TLS; t != (TLS{}) && (t.CA == "" || t.Cert == "" || t.Key == "") {
		v.addMistake("tls: ca, cert and key belong together: give all three files, or none for plain TCP")
	}
	return errors.Join(append(v.errs, c.Faults.Validate())...)
}

type mistakes struct{ errs []error }

func (v *mistakes) addMistake(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

// addName checks the name of one thing of a kind, and enters it among those that are used.
func (v *mistakes) addName(field, name string, used map[string]bool) {
	switch {
	case name == "" || len(name) > 63:
		v.addMistake("%s: %q is %d bytes long: it must be 1 to 63", field, name, len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		v.addMistake("%s: %q has characters that cannot be shown: leave them out", field, name)
	case used[name]:
		v.addMistake("%s: %q is used twice: give one of them a different name", field, name)
	}
	used[name] = true
}

// ofAFXDP refuses a field that only the afxdp backend uses.
const ofAFXDP = ", but the udp backend has no interfaces: leave it out, or choose backend afxdp"

func (c *Config) checkSwitch(v *mistakes) {
	c.checkPlane(v)
	c.checkPorts("switch", c.Switch, v)
	switch n := c.Switch.Stripes; {
	case n < 1 || n > wire.MaxStripes:
		v.addMistake("switch.stripes: %d is not in 1..%d", n, wire.MaxStripes)
	case n > wire.DefaultStripes && c.Backend == BackendUDP:
		v.addMistake("switch.stripes: %d, but the frames of the udp backend have at most %d, whatever the MTU", n,
			wire.DefaultStripes)
	}
}

func (c *Config) checkPlane(v *mistakes) {
	s, backend := c.Switch, BackendAFXDP
	switch s.Plane {
	case PlaneXDP:
	case PlaneModel:
		backend = BackendUDP
	case PlaneP4:
		c.checkP4(v)
	default:
		v.addMistake("switch.plane: %q is none of xdp, model, p4", s.Plane)
		return
	}
	if c.Backend != backend && (c.Backend == BackendAFXDP || c.Backend == BackendUDP) {
		v.addMistake("switch.plane: %s, but hosts with the %s backend do not reach it: choose backend %s", s.Plane, c.Backend,
			backend)
	}
	if s.Plane != PlaneP4 && !reflect.ValueOf(s.P4).IsZero() {
		v.addMistake("switch.p4: only with plane p4, and this one is %s", s.Plane)
	}
}

// maxP4Port is the largest port of v1model, whose ports have nine bits: 511 drops.
const maxP4Port = 510

// checkP4 does not check fields that flags of the daemon may set.
func (c *Config) checkP4(v *mistakes) {
	s := c.Switch
	if (s.P4.Info == "") != (s.P4.Config == "") {
		v.addMistake("switch.p4.p4info, config: they belong together (--p4-info, --p4-config): give both files of a compiled program, or none")
	}
	ports := slices.Concat(s.P4.Ports, slices.Collect(maps.Values(s.P4.Hosts)))
	if i := slices.IndexFunc(ports, func(p uint32) bool { return p >= maxP4Port }); i >= 0 {
		v.addMistake("switch.p4: port %d is not in 0..%d", ports[i], maxP4Port-1)
	}
	for i, port := range s.P4.Ports {
		if slices.Contains(s.P4.Ports[:i], port) {
			v.addMistake("switch.p4.ports: port %d is named twice: name each port once (--p4-ports)", port)
			break
		}
	}
	for mac := range s.P4.Hosts {
		if a, err := net.ParseMAC(mac); err != nil || len(a) != 6 {
			v.addMistake("switch.p4.hosts: %q is no MAC address", mac)
		}
	}
	if s.Stripes > 1 {
		v.addMistake("switch.stripes: %d, but a P4 switch takes frames of 1: leave it out", s.Stripes)
	}
	if len(s.Interfaces) > 0 || s.XDPMode != "" || s.ThreadedNAPI {
		v.addMistake("switch.interfaces, xdp_mode, threaded_napi: with plane p4 no program is attached to interfaces: leave them out")
	}
}

func (c *Config) checkJob(v *mistakes) {
	j := c.Job
	if j.ID > 255 {
		v.addMistake("job.id: %d is not in 0..255", j.ID)
	}
	if j.HotSet == "" && !c.Serverless() {
		v.addMistake("job.hot_set: the path of a hot-set file is required (make one with 'libra hotset build')")
	}
	if _, known := arithmetics[j.Arithmetic]; !known {
		v.addMistake("job.arithmetic: %q is none of exact, lut, fixed", j.Arithmetic)
	} else if j.Arithmetic == aggregator.LUT.String() && j.Exponent != nil {
		v.addMistake("job.exponent: %d, but lut arithmetic has none: leave it out", *j.Exponent)
	} else if _, err := fixedpoint.NewFormat(j.Config().Exp); err != nil {
		v.addMistake("job.exponent: %w", err)
	}
	if j.ReplayMiB < 1 || j.ReplayMiB > maxReplayMiB {
		v.addMistake("job.replay_mib: %d is not in 1..%d", j.ReplayMiB, maxReplayMiB)
	}
	switch {
	case j.Sync && j.Harvest != 0:
		v.addMistake("job.harvest: %v, but with job.sync every step is harvested: leave it out", j.Harvest)
	case j.Sync && j.HarvestFrames != 0:
		v.addMistake("job.harvest_frames: %d, but with job.sync every step is harvested: leave it out", j.HarvestFrames)
	case j.Sync && j.Staleness != 0:
		v.addMistake("job.staleness: %d, but with job.sync no worker is ahead of the weights: leave it out", j.Staleness)
	case !j.Sync && j.Staleness < 1:
		v.addMistake("job.staleness: %d is less than 1", j.Staleness)
	case j.Sync && j.Accumulate != 0:
		v.addMistake("job.accumulate: %d, but with job.sync every step has its gradients: leave it out", j.Accumulate)
	case !j.Sync && j.Accumulate < 1:
		v.addMistake("job.accumulate: %d is less than 1", j.Accumulate)
	case !j.Sync && (j.Harvest < time.Microsecond || j.Harvest > time.Hour): // microseconds in 32 bits
		v.addMistake("job.harvest: %v is not in %v..%v", j.Harvest, time.Microsecond, time.Hour)
	}
}

// maxReplayMiB is more than a worker can send in the time in which a lost aggregator is noticed.
const maxReplayMiB = 1 << 10

// ofSteps reports whether several servers keep checkpoints of the same steps.
func (c *Config) ofSteps() bool { return c.Job.Sync && len(c.Servers) > 1 }

func (c *Config) checkServers(v *mistakes) {
	if len(c.Servers) > 0 && !reflect.ValueOf(c.Server).IsZero() {
		v.addMistake("servers: the file has server, too: list all servers here, and leave server out")
	}
	if n := len(c.Servers); n > wire.MaxServers {
		v.addMistake("servers: %d are listed; the limit is %d", n, wire.MaxServers)
	}
	c.eachServer(func(field string, s *Server) { c.checkServer(field, *s, v) })
	for i, s := range c.Servers {
		first := c.Servers[0]
		if (s.Checkpoint == "") != (first.Checkpoint == "") {
			v.addMistake("servers[%d].checkpoint: %q, and that of servers[0] is %q: either all servers keep checkpoints or none does",
				i, s.Checkpoint, first.Checkpoint)
		}
		if s.CheckpointSteps != first.CheckpointSteps && c.ofSteps() {
			v.addMistake("servers[%d].checkpoint_steps: %d, and those of servers[0] are %d: checkpoints of the same steps belong together, so give all servers the same", i, s.CheckpointSteps, first.CheckpointSteps)
		}
	}
	if len(c.Servers) > 1 && c.Data.HasTest() {
		field := "data.test"
		if c.Data.Synthetic != nil {
			field = "data.synthetic.test"
		}
		v.addMistake("%s: a server evaluates its own rows, and with several servers no one has all: leave it out, and use 'libra evaluate' on their checkpoints", field)
	}
}

func (c *Config) checkServer(field string, s Server, v *mistakes) {
	c.checkHost(field, s.Host, v)
	add := func(format string, args ...any) { v.addMistake(field+format, args...) }
	switch {
	case c.ofSteps() && s.CheckpointEvery != nil && *s.CheckpointEvery != 0:
		add(".checkpoint_every: %v, but several servers with job.sync keep checkpoints of the same steps: use checkpoint_steps", *s.CheckpointEvery)
	case s.CheckpointEvery != nil && *s.CheckpointEvery < 0:
		add(".checkpoint_every: %v is negative; 0 writes none by time", *s.CheckpointEvery)
	case s.CheckpointEvery != nil && *s.CheckpointEvery != 0 && s.Checkpoint == "":
		add(".checkpoint_every: %v, but %s.checkpoint names no file", *s.CheckpointEvery, field)
	case s.CheckpointSteps != 0 && !c.Job.Sync:
		add(".checkpoint_steps: %d, but only jobs with job.sync have steps in common: use checkpoint_every",
			s.CheckpointSteps)
	case s.CheckpointSteps != 0 && s.Checkpoint == "":
		add(".checkpoint_steps: %d, but %s.checkpoint names no file", s.CheckpointSteps, field)
	}
	switch {
	case s.Rejoin < 0:
		add(".rejoin: %v is negative", s.Rejoin)
	case s.Rejoin != 0 && c.ofSteps():
		add(".rejoin: %v, but with job.sync and several servers the loss of a worker ends the job", s.Rejoin)
	}
	if s.MaxRows < 0 || s.MaxRows > ps.MaxRows {
		add(".max_rows: %d is not in 1..%d", s.MaxRows, ps.MaxRows)
	}
}

// checkInterface refuses names that Linux does not allow for an interface (net/core/dev.c,
// dev_valid_name).
func checkInterface(field, name string, v *mistakes) {
	const longest = 15 // IFNAMSIZ with its final zero is 16
	if name == "" || name == "." || name == ".." || len(name) > longest || strings.ContainsAny(name, "/: \t\n\v\f\r") {
		v.addMistake("%s: %q is not a valid interface name: 1 to %d bytes without a slash, a colon and spaces; \"ip link\" shows those of a host", field, name, longest)
	}
}

func (c *Config) checkHost(field string, h Host, v *mistakes) {
	switch {
	case c.Backend == BackendAFXDP && h.Interface == "":
		v.addMistake("%s.interface: required with the afxdp backend", field)
	case c.Backend == BackendAFXDP:
		checkInterface(field+".interface", h.Interface, v)
	case c.Backend == BackendUDP && h.Interface != "":
		v.addMistake("%s.interface: %q"+ofAFXDP, field, h.Interface)
	}
	switch {
	case h.Queue < 0:
		v.addMistake("%s.queue: %d is negative", field, h.Queue)
	case c.Backend == BackendUDP && h.Queue != 0:
		v.addMistake("%s.queue: %d"+ofAFXDP, field, h.Queue)
	}
}

func (c *Config) checkWorkers(v *mistakes) {
	if len(c.Workers) == 0 {
		v.addMistake("workers: at least one is required")
	}
	seen := map[uint16]bool{}
	for i, w := range c.Workers {
		field := fmt.Sprintf("workers[%d]", i)
		switch {
		case w.ID == 0:
			v.addMistake("%s.id: workers are numbered from 1", field)
		case w.ID == math.MaxUint16:
			v.addMistake("%s.id: %d stands for all workers in frames: number workers from 1 to %d", field, w.ID, math.MaxUint16-1)
		case seen[w.ID]:
			v.addMistake("%s.id: %d is used twice", field, w.ID)
		}
		seen[w.ID] = true
		c.checkHost(field, w.Host, v)
	}
}

// checkAddresses checks all addresses together. Frames of every process have the same UDP port, so
// each address can belong to one process only.
func (c *Config) checkAddresses(v *mistakes) {
	owner := map[netip.Addr]string{}
	frames := func(field string, addr netip.Addr) {
		switch {
		case !addr.IsValid():
			v.addMistake("%s: an IP address is required", field)
		case !addr.Is4():
			v.addMistake("%s: %v is not IPv4, which aggregators speak: give the host's IPv4 address", field, addr)
		case !isHost(addr):
			v.addMistake("%s: %v is not the address of a host", field, addr)
		case owner[addr] != "":
			v.addMistake("%s: %v is also %s: each process needs an address of its own, on one machine as well (127.0.0.1, 127.0.0.2, ...)", field, addr, owner[addr])
		default:
			owner[addr] = field
		}
	}
	frames("switch.address", c.Switch.Address)
	for i, s := range c.Standbys {
		frames(fmt.Sprintf("standbys[%d].address", i), s.Address)
	}
	c.eachServer(func(field string, s *Server) { frames(field+".address", s.Address) })
	for i, w := range c.Workers {
		frames(fmt.Sprintf("workers[%d].address", i), w.Address)
	}
	delete(owner, c.Switch.Address) // which is one of the switches
	for _, s := range c.Standbys {
		delete(owner, s.Address) // likewise, perhaps
	}
	for i, s := range c.Switches {
		if !s.Plain {
			frames(fmt.Sprintf("switches[%d].address", i), s.Address)
		}
	}

	services := map[netip.AddrPort]string{}
	control := func(field string, a netip.AddrPort) {
		at := netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		switch {
		case !a.IsValid():
			v.addMistake("%s: an IP:port is required", field)
		case a.Port() == 0 || !isHost(at.Addr()):
			v.addMistake("%s: %v cannot be dialled: give the address and the port that the other hosts reach it by", field, a)
		case services[at] != "":
			v.addMistake("%s: %v is also %s: give one of them a different port", field, a, services[at])
		default:
			services[at] = field
		}
	}
	control("switch.control", c.Switch.Control)
	for i, s := range c.Standbys {
		control(fmt.Sprintf("standbys[%d].control", i), s.Control)
	}
	for i, s := range c.Switches {
		if s.Control.IsValid() && !c.isOwn(s) {
			control(fmt.Sprintf("switches[%d].control", i), s.Control)
		}
	}
	c.eachServer(func(field string, s *Server) { control(field+".control", s.Control) })
}

// isHost reports whether packets to an address go to one host.
func isHost(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (c *Config) checkModel(v *mistakes) {
	m := c.Model
	switch most, rows := train.MaxFactors+1, m.Factors+1; {
	case m.Dim == 0:
	case m.Dim < 1 || m.Dim > most:
		v.addMistake("model.dim: %d is not in 1..%d", m.Dim, most)
		return // kind and factors follow from it
	case m.Dim != rows:
		v.addMistake("model.dim: %d, but rows of kind %s with %d factors have %d floats: leave kind and factors out, or dim",
			m.Dim, m.Kind, m.Factors, rows)
	}
	switch m.Kind {
	case "fm":
		if m.Factors < 1 || m.Factors > train.MaxFactors {
			v.addMistake("model.factors: %d is not in 1..%d", m.Factors, train.MaxFactors)
		}
		positive(v, "model.init_scale", m.InitScale)
	case "lr":
		if m.Factors != 0 {
			v.addMistake("model.factors: %d, but lr has none: leave it out, or choose kind fm", m.Factors)
		}
		if m.InitScale != 0 {
			v.addMistake("model.init_scale: %g, but lr begins with zeros: leave it out, or choose kind fm", m.InitScale)
		}
	default:
		v.addMistake("model.kind: %q is neither \"fm\" nor \"lr\"", m.Kind)
	}
	if !slices.Contains(data.Tasks(), m.Task) {
		v.addMistake("model.task: %q is neither \"classification\" nor \"regression\"", m.Task)
	}
	switch m.Optimizer {
	case "adagrad":
		positive(v, "model.initial_accumulator", m.InitialAccumulator)
	case "sgd":
		if m.InitialAccumulator != 0 {
			v.addMistake("model.initial_accumulator: %g, but sgd has none: leave it out, or choose optimizer adagrad",
				m.InitialAccumulator)
		}
	case "none":
		c.checkNoWeights(v)
	default:
		v.addMistake("model.optimizer: %q is neither \"adagrad\" nor \"sgd\" nor \"none\"", m.Optimizer)
	}
	if m.Optimizer != "none" {
		positive(v, "model.learning_rate", m.LearningRate)
	}
	if m.L2 != 0 { // 0 means no penalty
		positive(v, "model.l2", m.L2)
	}
	if m.Batch < 1 {
		v.addMistake("model.batch: %d is less than 1", m.Batch)
	}
	if m.Epochs < 1 {
		v.addMistake("model.epochs: %d is less than 1", m.Epochs)
	}
}

// checkNoWeights refuses fields that need weights, in a job that has only the sums of its steps.
func (c *Config) checkNoWeights(v *mistakes) {
	if !c.Job.Sync {
		v.addMistake("model.optimizer: none is for jobs whose workers want the sums of the steps that they take together: set job.sync, or choose adagrad or sgd")
	}
	if d := c.Data; d.Train != "" || d.Test != "" || d.Synthetic != nil {
		v.addMistake("model.optimizer: none keeps no weights, which training and evaluation read: leave data out, or choose adagrad or sgd")
	}
	if rate := c.Model.LearningRate; rate != 0 {
		v.addMistake("model.learning_rate: %g, but optimizer none changes no weights: leave it out, or choose adagrad or sgd", rate)
	}
	if initial := c.Model.InitialAccumulator; initial != 0 {
		v.addMistake("model.initial_accumulator: %g, but optimizer none has none: leave it out, or choose adagrad", initial)
	}
}

// positive refuses a value that is not a positive number as a float32, the type of training.
func positive(v *mistakes, field string, x float64) {
	if f := float64(float32(x)); !(f > 0) || math.IsInf(f, 0) {
		v.addMistake("%s: %g is not in %g..%g, the positive float32 numbers", field, x,
			math.SmallestNonzeroFloat32, math.MaxFloat32)
	}
}

func (c *Config) checkData(v *mistakes) {
	s := c.Data.Synthetic
	if c.Data.Window < 0 {
		v.addMistake("data.window: %d is negative; 0 holds all rows in memory", c.Data.Window)
	}
	switch {
	case c.Data.Train == "" && s == nil && c.Data.Test != "":
		v.addMistake("data.test: %s, but no training rows are configured: give data.train", c.Data.Test)
	case c.Data.Train != "" && s != nil:
		v.addMistake("data: train and synthetic exclude each other: leave one of them out")
	case s != nil && c.Data.Test != "":
		v.addMistake("data.test: %s, but with data.synthetic data.synthetic.test is the number of held-out rows: leave one of them out", c.Data.Test)
	case s == nil:
	case s.Test < 0:
		v.addMistake("data.synthetic.test: %d is negative", s.Test)
	case s.Rows < 1:
		v.addMistake("data.synthetic.rows: %d is less than 1", s.Rows)
	case s.First < 0:
		v.addMistake("data.synthetic.first: %d is negative", s.First)
	case s.Hot < 1:
		v.addMistake("data.synthetic.hot: %d is less than 1", s.Hot)
	case !(s.HotShare > 0 && s.HotShare < 1):
		v.addMistake("data.synthetic.hot_share: %g is not between 0 and 1", s.HotShare)
	}
}

// Validate reports the first invalid probability, and a seed without faults.
func (f Faults) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{{"loss", f.Loss}, {"duplicate", f.Duplicate}, {"reorder", f.Reorder}} {
		if !(p.value >= 0 && p.value < 1) {
			return fmt.Errorf("faults.%s: probability %g is not in [0, 1)", p.name, p.value)
		}
	}
	if f.Seed != 0 && !f.Any() {
		return fmt.Errorf("faults.seed: %d, but there are no faults: leave it out, or give a probability", f.Seed)
	}
	return nil
}
