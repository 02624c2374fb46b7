package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
)

// bed is the cable with its two ends. The tested end is a host of a test bed, the
// opposite end the port of the switch that it is plugged in.
type bed struct {
	cfg      Config
	mtu      int
	net      *testbed.Bed
	tested   endpoint
	opposite endpoint
	programs oppositeObjects
	attached link.Link // of one of programs, to the opposite end; nil while the aggregator is there
	// aggregator is nil until the first turn of the push test.
	aggregator *bpf.Aggregator
	threads    [2]int // NAPI threads of the tested and of the opposite end
}

// newBed builds a bed for frames of up to mtu bytes without the Ethernet header.
func newBed(ctx context.Context, cfg Config, mtu int) (*bed, error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: 1, MTU: mtu, ThreadedNAPI: true, StaticARP: true})
	if err != nil {
		return nil, err
	}
	b := &bed{cfg: cfg, mtu: mtu, net: network}
	host, sw := network.Host(0), network.Switch()
	b.tested = endpoint{mac: host.MAC, ip: host.IP}
	b.opposite = endpoint{mac: sw.MAC, ip: sw.IP}
	if err := b.load(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if err := b.pinThreads(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// host is the node of the tested end.
func (b *bed) host() *testbed.Node { return b.net.Host(0) }

// load loads the programs of the opposite end and attaches the counting one.
func (b *bed) load() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	spec, err := loadOpposite()
	if err != nil {
		return fmt.Errorf("engine: read the opposite end's programs: %w", err)
	}
	// The programs compare with fields as they are in a frame.
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], testPort)
	ip := func(e endpoint) uint32 {
		a := e.ip.As4()
		return binary.NativeEndian.Uint32(a[:])
	}
	mac := func(m net.HardwareAddr) (words [3]uint16) {
		for i := range words {
			words[i] = binary.NativeEndian.Uint16(m[2*i:])
		}
		return words
	}
	for name, value := range map[string]any{
		oppositeVarTestPort:    binary.NativeEndian.Uint16(port[:]),
		oppositeVarTestedMac:   mac(b.tested.mac),
		oppositeVarOppositeMac: mac(b.opposite.mac),
		oppositeVarTestedIp:    ip(b.tested),
		oppositeVarOppositeIp:  ip(b.opposite),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("engine: set %s of the opposite end's programs: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(&b.programs, nil); err != nil {
		return fmt.Errorf("engine: load the opposite end's programs: %w", err)
	}
	return b.attach()
}

// prepare makes the ends ready for a peer's turn in a test. The function that it
// returns undoes what must not stay.
func (b *bed) prepare(test Test, peer string) (undo func() error, err error) {
	if err := b.detachLeftover(); err != nil {
		return nil, err
	}
	if test == Push {
		return b.aggregate()
	}
	prog := b.programs.CountAndDrop
	if test == Echo || test == RequestResponse {
		prog = b.programs.Reflect
	}
	if err := b.attached.Update(prog); err != nil {
		return nil, fmt.Errorf("engine: change the opposite end's program: %w", err)
	}
	var links []link.Link
	undo = func() error {
		var errs []error
		for _, l := range links {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	err = b.host().Do(func() error {
		if prog == b.programs.Reflect && !usesXDP(peer) {
			l, err := link.AttachXDP(link.XDPOptions{Interface: b.host().Index, Program: b.programs.Pass, Flags: link.XDPDriverMode})
			if err != nil {
				return fmt.Errorf("engine: attach a program to the tested end: %w", err)
			}
			links = append(links, l)
		}
		if usesPacketSocket(peer) {
			l, err := link.AttachTCX(link.TCXOptions{Interface: b.host().Index, Program: b.programs.Shield, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return fmt.Errorf("engine: keep frames from the protocol stack (needs Linux 6.6): %w", err)
			}
			links = append(links, l)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// detachLeftover removes an XDP program that a peer left at the tested end: one
// that was attached without a bpf_link outlives a process that was killed.
func (b *bed) detachLeftover() error {
	return b.host().Do(func() error {
		l, err := netlink.LinkByIndex(b.host().Index)
		if err != nil {
			return fmt.Errorf("engine: find the tested end: %w", err)
		}
		if x := l.Attrs().Xdp; x == nil || !x.Attached {
			return nil
		}
		if err := netlink.LinkSetXdpFd(l, -1); err != nil {
			return fmt.Errorf("engine: remove a peer's XDP program: %w", err)
		}
		return nil
	})
}

// arrived returns how many frames of the test came from the tested end since
// the bed was built.
func (b *bed) arrived() (uint64, error) {
	var cpus []oppositeTally
	if err := b.programs.Arrived.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("engine: read the opposite end's counter: %w", err)
	}
	var n uint64
	for _, t := range cpus {
		n += t.Frames
	}
	return n, nil
}

// threadNice is the priority of the NAPI threads. They have to come before
// the generator, which runs on the same CPU and would else fill the ring for a
// whole time slice before they empty it.
const threadNice = -20

// pinThreads finds the NAPI threads and moves them to the opposite end's CPU.
func (b *bed) pinThreads() error {
	for i, end := range []struct {
		node  *testbed.Node
		index int
	}{{b.host(), b.host().Index}, {b.net.Switch(), b.host().PortIndex}} {
		err := end.node.Do(func() error {
			pids, err := napiThreads(end.index)
			if err != nil {
				return err
			}
			if len(pids) != 1 {
				return fmt.Errorf("interface has %d NAPI threads, want 1", len(pids))
			}
			b.threads[i] = pids[0]
			var set unix.CPUSet
			set.Set(b.cfg.CPUs[1])
			return errors.Join(unix.SchedSetaffinity(pids[0], &set), unix.Setpriority(unix.PRIO_PROCESS, pids[0], threadNice))
		})
		if err != nil {
			return fmt.Errorf("engine: pin the NAPI threads: %w", err)
		}
	}
	return nil
}

func (b *bed) close() error {
	errs := []error{b.detach()}
	if b.aggregator != nil {
		errs = append(errs, b.aggregator.Close())
	}
	return errors.Join(append(errs, b.programs.Close(), b.net.Close())...)
}
