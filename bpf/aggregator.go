// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/netdev"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// Options configure an [Aggregator].
type Options struct {
	// Address is the aggregator's IPv4 address. Required.
	Address netip.Addr

	// Port is the UDP port of the aggregator and of the hosts whose frames
	// are forwarded. 0 means [wire.DefaultPort].
	Port uint16

	// MaxSenders limits the number of admitted senders of all jobs together; each takes 16 KiB. 0
	// means 1024.
	MaxSenders int

	// Budget is the number of costly frames per second and sender that are processed: frames with
	// an invalid number or rank, or with numbers or sums in the upper half of the range. A sender
	// may send one second's budget at once. Frames beyond it are dropped and counted as Throttled.
	// 0 means [DefaultBudget], a negative number no limit.
	Budget int

	// Sample is the number of frames of which one is measured, a power of two; see
	// [Aggregator.JobTimes]. 0 measures none.
	Sample int
}

// DefaultBudget is the default of [Options.Budget]. The most expensive frame of ten stripes takes
// about 10 microseconds, so a sender can use half a percent of a CPU for them.
const DefaultBudget = 500

// Aggregator is an aggregator's data plane in XDP. Its methods may be called from several
// goroutines. Calls for different jobs do not wait for each other.
type Aggregator struct {
	objects aggregateObjects
	table   jobTable
	times   timeTable
	senders *senderTable
	lut     lookupTables
	inner   innerMaps
	port    uint16 // of senders that are admitted without one
	places  [aggregator.MaxJobs]place

	patience time.Duration // limit of Swap's wait
	// waits, if not nil, is called before a call for a job waits for programs to end. For tests.
	waits func(job uint16)

	mu     sync.Mutex // guards the fields below; taken after a place's locks
	closed bool
	sets   map[uint16]*portSet // by job
	ports  map[string]*port    // by interface name
	routes map[[6]byte]uint32  // index of the interface
	// withheld holds the indices of interfaces without forwarding.
	withheld map[uint32]struct{}
	home     namespace // namespace of the interfaces
	failures failures
	watch    *netdev.Watch // watch on the interfaces' features, nil without routes
	watched  chan struct{} // closed when the watch's goroutine has ended
}

// innerMaps are the specs of each job's own maps.
type innerMaps struct {
	bank, blocks, groups, ports *ebpf.MapSpec
}

var _ aggregator.Plane = (*Aggregator)(nil)

// Open loads the aggregator's program and creates its maps. Nothing happens
// to any interface before [Aggregator.Attach].
func Open(o Options) (*Aggregator, error) {
	spec, err := loadAggregate()
	if err != nil {
		return nil, err
	}
	return openSpec(spec, o)
}

func openSpec(spec *ebpf.CollectionSpec, o Options) (*Aggregator, error) {
	if !o.Address.Is4() {
		return nil, fmt.Errorf("bpf: address %v: %w: aggregators have an IPv4 address",
			o.Address, aggregator.ErrUnsupported)
	}
	if err := telemetry.CheckSample(o.Sample); err != nil {
		return nil, fmt.Errorf("bpf: sample: %w: %w", aggregator.ErrConfig, err)
	}
	o.Port = cmp.Or(o.Port, wire.DefaultPort)
	if o.MaxSenders != 0 {
		spec.Maps[aggregateMapSenders].MaxEntries = uint32(o.MaxSenders)
		spec.Maps[aggregateMapAdmissions].MaxEntries = uint32(o.MaxSenders)
	}
	// Each sender is a host, and each job has a server.
	spec.Maps[aggregateMapRoutes].MaxEntries = spec.Maps[aggregateMapSenders].MaxEntries + aggregator.MaxJobs
	o.Budget = cmp.Or(o.Budget, DefaultBudget)
	var budgetCost, budgetDepth uint64 // in nanoseconds; zero: no limit
	if o.Budget > 0 {
		budgetDepth = uint64(time.Second)
		budgetCost = max(1, budgetDepth/uint64(o.Budget))
	}
	address := o.Address.As4()
	err := errors.Join(
		spec.Variables[aggregateVarAddress].Set(binary.NativeEndian.Uint32(address[:])),
		spec.Variables[aggregateVarPort].Set(networkOrder(o.Port)),
		spec.Variables[aggregateVarBudgetCost].Set(budgetCost),
		spec.Variables[aggregateVarBudgetDepth].Set(budgetDepth),
		spec.Variables[aggregateVarDrawBelow].Set(telemetry.NewDraw(o.Sample).Below()),
		spec.Variables[aggregateVarTimeBounds].Set(telemetry.Bounds()),
	)
	if err != nil {
		return nil, fmt.Errorf("bpf: %w", err)
	}
	a := &Aggregator{
		inner: innerMaps{
			bank:   spec.Maps[aggregateMapBanks].InnerMap,
			blocks: spec.Maps[aggregateMapBankBlocks].InnerMap,
			groups: spec.Maps[aggregateMapGroups].InnerMap,
			ports:  spec.Maps[aggregateMapPortSets].InnerMap,
		},
		port: o.Port,

		patience: time.Second,

		sets:   make(map[uint16]*portSet),
		ports:  make(map[string]*port),
		routes: make(map[[6]byte]uint32),

		withheld: make(map[uint32]struct{}),
	}
	if err := load(spec, &a.objects); err != nil {
		return nil, err
	}
	if a.table, err = openJobTable(&a.objects); err != nil {
		return nil, errors.Join(err, a.objects.Close())
	}
	if a.times, err = openTimeTable(&a.objects); err != nil {
		return nil, errors.Join(err, a.table.unmapTable(), a.objects.Close())
	}
	if a.senders, err = openSenderTable(&a.objects); err != nil {
		return nil, errors.Join(err, a.table.unmapTable(), a.times.unmapTable(), a.objects.Close())
	}
	return a, nil
}

// networkOrder returns a number whose bytes in memory are x in big-endian order.
func networkOrder(x uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], x)
	return binary.NativeEndian.Uint16(b[:])
}

// Attach attaches the program to an interface. It never replaces another program: it returns
// [afxdp.ErrProgramAttached] instead. The interface becomes a port of the aggregator, which
// AddRoute may name, and gets the results of rounds of jobs that have a sender without a route.
func (a *Aggregator) Attach(iface string, mode afxdp.AttachMode) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return aggregator.ErrClosed
	}
	if a.ports[iface] != nil {
		return fmt.Errorf("bpf: the aggregator is attached to %s already", iface)
	}
	at, err := afxdp.Attach(afxdp.AttachConfig{Interface: iface, Mode: mode, Program: a.objects.Aggregate})
	if err != nil {
		return err
	}
	index, err := a.interfaceIndex(iface)
	if err != nil {
		return errors.Join(err, at.Close())
	}
	a.ports[iface] = &port{at, index}
	a.failures.startCounting(a.objects.Aggregate)
	if err := errors.Join(a.failures.countAttached(&a.home, index), a.updateAllPorts()); err != nil {
		return errors.Join(err, a.detachPort(iface))
	}
	return nil
}

// Reattach attaches the program again to a port from which another process has detached it, or that
// was deleted and created again. index is the port's present one, from the network namespace of the
// calling thread, which is the aggregator's. It reports whether that was necessary. Routes to a
// port that was created again have to be added again, too.
func (a *Aggregator) Reattach(iface string, index int) (again bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.ports[iface]
	switch {
	case a.closed:
		return false, aggregator.ErrClosed
	case p == nil:
		return false, fmt.Errorf("bpf: the aggregator is not attached to %s", iface)
	}
	on, err := p.AttachedTo()
	if err != nil || on == index {
		return false, err
	}
	if err := p.Reattach(); err != nil {
		return false, err
	}
	on, err = p.AttachedTo()
	if err != nil || uint32(on) == p.index {
		return true, err
	}
	before := p.index
	p.index = uint32(on)
	return true, errors.Join(a.failures.countDetached(&a.home, before), a.failures.countAttached(&a.home, p.index),
		a.updateAllPorts())
}

// Mode returns the mode that the kernel uses on an interface, or false if the
// aggregator is not attached to it.
func (a *Aggregator) Mode(iface string) (afxdp.AttachMode, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.ports[iface]
	if at == nil {
		return 0, false
	}
	return at.Mode(), true
}

// Detach removes the program from an interface. It is not an error if it is not attached.
func (a *Aggregator) Detach(iface string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ports[iface] == nil {
		return nil
	}
	return a.detachPort(iface)
}

// detachPort removes the program from a port. The caller holds the lock.
func (a *Aggregator) detachPort(iface string) error {
	at := a.ports[iface]
	delete(a.ports, iface)
	return errors.Join(a.updateAllPorts(), at.Close(), a.failures.countDetached(&a.home, at.index))
}

// Close implements [aggregator.Plane]. It detaches the program from all
// interfaces first.
func (a *Aggregator) Close() error {
	err := a.closeAll()
	if a.watched != nil {
		<-a.watched
	}
	return err
}

func (a *Aggregator) closeAll() error {
	var errs []error
	for i := range a.places {
		errs = append(errs, a.places[i].closePlace())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	if a.watch != nil {
		a.watch.Close()
	}
	for _, at := range a.ports {
		errs = append(errs, at.Close())
	}
	clear(a.ports)
	return errors.Join(append(errs, a.failures.closeTracepoints(), a.home.closeNamespace(), a.table.unmapTable(),
		a.times.unmapTable(), a.senders.unmapTable(), a.objects.Close())...)
}
