package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/wire"
)

// bed is the cable with its two ends. The tested end is a host of a test bed, the
// opposite end the port of the switch that it is plugged in.
type bed struct {
	cfg      Config
	mtu      int
	net      *testbed.Bed
	tested   wire.Endpoint
	opposite wire.Endpoint
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
	b.tested = wire.Endpoint{MAC: [6]byte(host.MAC), IP: host.IP, Port: testPort}
	b.opposite = wire.Endpoint{MAC: [6]byte(sw.MAC), IP: sw.IP, Port: testPort}
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
	for name, value := range map[string][]byte{
		oppositeVarTestPort:    binary.BigEndian.AppendUint16(nil, testPort),
		oppositeVarTestedMac:   b.tested.MAC[:],
		oppositeVarOppositeMac: b.opposite.MAC[:],
		oppositeVarTestedIp:    b.tested.IP.AsSlice(),
		oppositeVarOppositeIp:  b.opposite.IP.AsSlice(),
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

// prepare makes the ends ready for a baseline's turn in a test. The function that
// it returns undoes what must not stay.
func (b *bed) prepare(test Test, baseline string) (undo func() error, err error) {
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
	if prog != b.programs.Reflect || baseline != UDP {
		return func() error { return nil }, nil
	}
	err = b.host().Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Interface: b.host().Index, Program: b.programs.Pass, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("engine: attach a program to the tested end: %w", err)
		}
		undo = l.Close
		return nil
	})
	return undo, err
}

// detachLeftover removes an XDP program that a baseline left at the tested end: one
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
			return fmt.Errorf("engine: remove a baseline's XDP program: %w", err)
		}
		return nil
	})
}

// arrived returns how many frames of the test came from the tested end since
// the bed was built.
func (b *bed) arrived() (uint64, error) {
	var cpus []uint64
	if err := b.programs.Arrived.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("engine: read the opposite end's counter: %w", err)
	}
	var n uint64
	for _, frames := range cpus {
		n += frames
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
			var err error
			if b.threads[i], err = napiThread(end.index); err != nil {
				return err
			}
			var set unix.CPUSet
			set.Set(b.cfg.CPUs[1])
			return errors.Join(unix.SchedSetaffinity(b.threads[i], &set), unix.Setpriority(unix.PRIO_PROCESS, b.threads[i], threadNice))
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

// Commands and attributes of the generic netlink family "netdev"
// (linux/netdev.h).
const (
	netdevFamily      = "netdev"
	netdevCmdNAPIGet  = 11
	netdevNAPIIfindex = 1
	netdevNAPIPID     = 4
)

// napiThread returns the process id of the kernel thread that runs the one NAPI
// context of an interface in the current namespace.
func napiThread(ifindex int) (int, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return 0, fmt.Errorf("look up netlink family %s: %w", netdevFamily, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	// struct genlmsghdr, whose last two bytes the kernel wants to be zero;
	// nl.Genlmsg has only the first two.
	req.AddRawData([]byte{netdevCmdNAPIGet, 1, 0, 0})
	req.AddRawData(nl.NewRtAttr(netdevNAPIIfindex, nl.Uint32Attr(uint32(ifindex))).Serialize())
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("list NAPI contexts (needs Linux 6.8): %w", err)
	}
	var pids []int
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("parse NAPI context: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevNAPIPID && len(a.Value) >= 4 {
				pids = append(pids, int(nl.NativeEndian().Uint32(a.Value)))
			}
		}
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("interface has %d NAPI threads, want 1", len(pids))
	}
	return pids[0], nil
}
