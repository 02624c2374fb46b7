// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// DefaultElection is the default election ID.
const DefaultElection = 1

// Options configure a [Plane] and its switch.
type Options struct {
	// Target is the switch's P4Runtime address: host:port, or unix:path.
	Target string
	// Device is the device ID of the switch at that address.
	Device uint64
	// Election is the election ID of this controller; 0 means [DefaultElection]. The controller
	// with the highest one is primary.
	Election uint64
	// Program is the program for the switch; nil means [program.Default].
	Program *program.Compiled
	// Replace allows Open to replace a different program.
	Replace bool
	// Progress, if not nil, is called from time to time while the first job of [aggregator.LUT]
	// waits for its tables, with the number of their entries in the switch.
	Progress func(done, total int)

	// Address and Port (0: [wire.DefaultPort]) are the aggregator's.
	Address netip.Addr
	Port    uint16
	// Ports are the switch's ports to hosts. A frame for a host without a route goes to all of them
	// except its own.
	Ports []uint32
}

// Plane is a switch that runs the program. It is an [aggregator.Plane] for jobs in all modes except
// [aggregator.Acked] and all arithmetics, with lane-aligned frames of one stripe; it refuses others
// with [aggregator.ErrUnsupported]. Frames for all senders of a job go out of all Ports.
//
// The first job of [aggregator.LUT] makes the plane load some 340,000 table entries, which takes
// bmv2 seconds; other calls continue meanwhile.
//
// The plane remembers the state that it has set in the switch. When the connection breaks it opens
// another; a call in the meantime fails with [ErrUnreachable] and may be repeated. When the switch
// has restarted or has another controller, its jobs are gone, which [Plane.Failed] reports.
type Plane struct {
	names     *names
	client    *client
	responses responses
	lut       lutLoader
	port      uint16
	failed    chan error

	mu          sync.Mutex // one management call at a time
	closed      bool
	jobs        map[uint16]*job
	rowPool     rowPool
	senders     indexPool
	routes      map[[6]byte]uint32
	generations uint32
	unsettled   bool // requests that change rows may be in flight: see rows
}

var _ aggregator.Plane = (*Plane)(nil)

// job is the plane's state of a job.
type job struct {
	aggregator.JobConfig
	first        int // index of the first row
	rows         int // of the fullest lanes
	senders      map[uint16]*admission
	doubtful     map[uint16]*admission // failed ones, whose entries may be in the switch
	places       int                   // in the rounds, assigned to senders so far
	participants map[uint16]bool       // senders with an entry in table participants
	bank         int                   // that frames add to
	swapped      bool                  // the other bank is frozen
	frozen       *aggregator.Bank
	began        counts    // of jobCells, at AddJob
	cleared      [2]counts // of the banks, when they were last cleared
}

// admission is the plane's state of an admission.
type admission struct {
	index int
	keys  []number // of its entry
	began counts
}

// Open connects to a switch, becomes its primary controller and loads the program, which ends all
// jobs that the switch may have had.
func Open(o Options) (*Plane, error) {
	if !o.Address.Is4() {
		return nil, fmt.Errorf("p4: address %v: %w: aggregators have an IPv4 address", o.Address, aggregator.ErrUnsupported)
	}
	o.Port, o.Election = cmp.Or(o.Port, wire.DefaultPort), cmp.Or(o.Election, DefaultElection)
	if o.Program == nil {
		var err error
		if o.Program, err = program.Default(); err != nil {
			return nil, err
		}
	}
	n, err := resolve(o.Program.Info)
	if err != nil {
		return nil, err
	}
	p := &Plane{
		names: n, responses: responses{in: n.in}, lut: lutLoader{progress: o.Progress}, port: o.Port,
		failed: make(chan error, 1),
		jobs:   make(map[uint16]*job), rowPool: rowPool{size: rowsOfBank},
		senders: indexPool{size: int(n.tables[tableSenders].size)}, routes: make(map[[6]byte]uint32),
	}
	if p.client, err = dial(o, n, p.responses.takePacket); err != nil {
		return nil, err
	}
	go func() {
		if err := p.client.keepStream(func() error { return p.client.requireUnchanged(o.Program) }); err != nil {
			p.failed <- err
		}
	}()
	if err := p.start(o); err != nil {
		return nil, errors.Join(err, p.client.closeStream())
	}
	return p, nil
}

// start loads the program and fills the tables that belong to no job.
func (p *Plane) start(o Options) error {
	if err := p.client.loadProgram(o.Program, o.Replace); err != nil {
		return err
	}
	port, v4 := uintNumber(uint64(o.Port)), uintNumber(1)
	for _, e := range []entry{
		{table: tableDestinations, keys: []number{port, v4, addrNumber(o.Address)}, priority: 2, action: actionLocal},
		{table: tableDestinations, keys: []number{port, nil, nil}, priority: 1, action: actionBetween},
	} {
		if err := p.client.putEntry("address of the aggregator", e); err != nil {
			return err
		}
	}
	if len(o.Ports) == 0 {
		return nil
	}
	return p.client.writeUpdates("ports", group(floodGroup, o.Ports), group(allGroup, o.Ports))
}

// The multicast groups of all ports: see program/forward.p4.
const (
	floodGroup = 1 // of frames
	allGroup   = 2 // of answers to all senders
)

// group returns the update that creates a multicast group. Its copies of a frame have its number,
// which the program checks.
func group(number uint32, ports []uint32) *rt.Update {
	g := &rt.MulticastGroupEntry{MulticastGroupId: number}
	for _, port := range ports {
		g.Replicas = append(g.Replicas, &rt.Replica{
			PortKind: &rt.Replica_Port{Port: uintNumber(uint64(port)).canonicalBytes()}, Instance: number,
		})
	}
	return &rt.Update{Type: rt.Update_INSERT, Entity: &rt.Entity{Entity: &rt.Entity_PacketReplicationEngineEntry{
		PacketReplicationEngineEntry: &rt.PacketReplicationEngineEntry{
			Type: &rt.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g},
		},
	}}}
}

// Slots returns the number of slots of all jobs together.
func (p *Plane) Slots() int { return p.rowPool.size * wire.Lanes }

// Senders returns the largest number of senders of all jobs together.
func (p *Plane) Senders() int { return p.senders.size }

// Failed delivers the error that makes the plane unusable: the switch has lost its jobs, or belongs
// to another controller.
func (p *Plane) Failed() <-chan error { return p.failed }

// Close implements [aggregator.Plane]. It removes the jobs from the switch, which continues to
// forward.
func (p *Plane) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	var errs []error
	if p.client.requireReady() == nil {
		for id := range p.jobs {
			errs = append(errs, p.removeJob(id))
		}
	}
	p.closed = true
	clear(p.jobs)
	return errors.Join(append(errs, p.client.closeStream())...)
}

// job returns a job's state. The caller holds the lock.
func (p *Plane) job(id uint16) (*job, error) {
	if p.closed {
		return nil, aggregator.ErrClosed
	}
	if j := p.jobs[id]; j != nil {
		return j, nil
	}
	return nil, fmt.Errorf("job %d: %w", id, aggregator.ErrNoJob)
}

// sender returns an admission and its job. The caller holds the lock.
func (p *Plane) sender(id, sender uint16) (*job, *admission, error) {
	j, err := p.job(id)
	if err != nil {
		return nil, nil, err
	}
	if s := j.senders[sender]; s != nil {
		return j, s, nil
	}
	return nil, nil, fmt.Errorf("job %d: sender %d: %w", id, sender, aggregator.ErrNoSender)
}
