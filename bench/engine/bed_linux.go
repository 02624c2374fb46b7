// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// bed is the cable with its two ends. The tested end is a host of a test bed, the
// opposite end the port of the switch that it is plugged in.
type bed struct {
	cfg        Config
	net        *testbed.Bed
	tested     wire.Endpoint
	opposite   wire.Endpoint
	programs   opposite
	attached   link.Link       // of one of programs, to the opposite end; nil while the aggregator is attached
	aggregator *bpf.Aggregator // nil unless in the push test
	threads    [2]int          // NAPI threads of the tested and of the opposite end
}

// newBed builds a bed for frames of up to mtu bytes without the Ethernet header.
func newBed(ctx context.Context, cfg Config, mtu int) (_ *bed, err error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: 1, MTU: mtu, ThreadedNAPI: true, StaticARP: true})
	if err != nil {
		return nil, err
	}
	b := &bed{cfg: cfg, net: network}
	defer experiment.Undo(&err, b.Close)
	host, sw := network.Host(0), network.Switch()
	b.tested = wire.Endpoint{MAC: [6]byte(host.MAC), IP: host.IP, Port: testPort}
	b.opposite = wire.Endpoint{MAC: [6]byte(sw.MAC), IP: sw.IP, Port: testPort}
	if err := b.programs.loadPrograms(b.tested, b.opposite); err != nil {
		return nil, err
	}
	return b, errors.Join(b.attachPrograms(), b.pinThreads())
}

func (b *bed) testedHost() *testbed.Node { return b.net.Host(0) }

// prepareTest makes the ends ready for a baseline's turn in a test. The function that
// it returns undoes what must not stay.
func (b *bed) prepareTest(test Test, baseline string) (undo func() error, err error) {
	if err := b.detachLeftover(); err != nil {
		return nil, err
	}
	if test == Push {
		return b.runAggregator()
	}
	prog := b.programs.countAndDrop
	if test == Echo || test == RequestResponse {
		prog = b.programs.reflect
	}
	if err := b.attached.Update(prog); err != nil {
		return nil, fmt.Errorf("engine: change the opposite end's program: %w", err)
	}
	if prog != b.programs.reflect || baseline != UDP {
		return func() error { return nil }, nil
	}
	l, err := attachXDP(b.testedHost(), b.testedHost().Index, b.programs.pass)
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

// detachLeftover removes an XDP program that a baseline left at the tested end: one
// that was attached without a bpf_link outlives a process that was killed.
func (b *bed) detachLeftover() error {
	return b.testedHost().Do(func() error {
		l, err := netlink.LinkByIndex(b.testedHost().Index)
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

// countArrived returns how many frames of the test came from the tested end since
// the bed was built.
func (b *bed) countArrived() (uint64, error) {
	var cpus []uint64
	if err := b.programs.arrived.Lookup(uint32(0), &cpus); err != nil {
		return 0, fmt.Errorf("engine: read the opposite end's counter: %w", err)
	}
	var n uint64
	for _, frames := range cpus {
		n += frames
	}
	return n, nil
}

// pinThreads finds the NAPI threads and moves them to the opposite end's CPU. They come before the
// generator there, which would else fill the ring for a whole time slice before they empty it.
func (b *bed) pinThreads() (err error) {
	if b.threads, err = harness.NAPIThreads(b.net, 0); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return errors.Join(sys.PinTask(b.threads[0], b.cfg.CPUs[1]), sys.PinTask(b.threads[1], b.cfg.CPUs[1]))
}

// Close removes the bed.
func (b *bed) Close() error {
	return errors.Join(b.detachPrograms(), b.programs.closePrograms(), b.net.Close())
}

func (b *bed) attachPrograms() (err error) {
	b.attached, err = attachXDP(b.net.Switch(), b.testedHost().PortIndex, b.programs.countAndDrop)
	return err
}

func attachXDP(at *testbed.Node, ifindex int, prog *ebpf.Program) (l link.Link, err error) {
	if err := at.Do(func() error {
		l, err = link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: prog, Flags: link.XDPDriverMode})
		return err
	}); err != nil {
		return nil, fmt.Errorf("engine: attach an XDP program: %w", err)
	}
	return l, nil
}

func (b *bed) detachPrograms() error {
	if b.attached == nil {
		return nil
	}
	err := b.attached.Close()
	b.attached = nil
	return err
}

// runAggregator makes the opposite end an XDP aggregator with a job, until undo.
func (b *bed) runAggregator() (undo func() error, err error) {
	undo = func() error {
		err := experiment.Close(b.aggregator)
		b.aggregator = nil
		return errors.Join(err, b.attachPrograms())
	}
	err = b.detachPrograms()
	if err == nil {
		b.aggregator, err = harness.OpenSwitch(b.net)
	}
	if err == nil {
		err = b.aggregator.AddJob(aggregator.JobConfig{
			ID: pushJob, Epoch: pushEpoch, Mode: aggregator.Combine, Arithmetic: aggregator.Exact,
			Exp: aggregator.DefaultExp(aggregator.Exact), Slots: hotKeys, Layouts: aggregator.Dense,
		})
	}
	if err == nil {
		err = b.aggregator.AddSender(pushJob, aggregator.SenderConfig{ID: pushSender, Epoch: pushEpoch, MAC: b.tested.MAC,
			IP: b.tested.IP})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: aggregator at the opposite end: %w", err), undo())
	}
	return undo, nil
}

// countLosses reads the counters of frames that were lost outside the tested program:
// at both ends of the cable, at UDP sockets of the tested end, and in the aggregator.
func (b *bed) countLosses() (map[string]uint64, error) {
	lost := map[string]uint64{}
	read := func(end string, at *testbed.Node, ifindex int) error {
		return at.Do(func() error {
			l, err := netlink.LinkByIndex(ifindex)
			if err != nil {
				return fmt.Errorf("engine: read counters of the %s: %w", end, err)
			}
			s := l.Attrs().Statistics
			lost[end+": RX dropped"], lost[end+": TX dropped"] = s.RxDropped, s.TxDropped
			return nil
		})
	}
	if err := errors.Join(read("tested end", b.testedHost(), b.testedHost().Index),
		read("opposite end", b.net.Switch(), b.testedHost().PortIndex)); err != nil {
		return nil, err
	}
	if b.aggregator != nil {
		c, err := b.aggregator.JobCounters(pushJob)
		if err != nil {
			return nil, fmt.Errorf("engine: read the aggregator's counters: %w", err)
		}
		lost["aggregator: duplicates"], lost["aggregator: refused"], lost["aggregator: raced"] = c.Duplicates,
			c.Refused.Total(), c.Raced
	}
	return lost, b.testedHost().Do(func() error { return udpLosses(lost) })
}

// udpLosses adds the UDP error counters of the current namespace. The file has
// a line of names and a line of values for each protocol.
func udpLosses(lost map[string]uint64) error {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return fmt.Errorf("engine: read UDP counters: %w", err)
	}
	_, udp, _ := strings.Cut(string(text), "\nUdp: ")
	names, udp, _ := strings.Cut(udp, "\nUdp: ")
	values, _, _ := strings.Cut(udp, "\n")
	fields := strings.Fields(values)
	for i, name := range strings.Fields(names) {
		if i < len(fields) && (name == "RcvbufErrors" || name == "SndbufErrors" || name == "InCsumErrors") {
			if lost["UDP: "+name], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
				return fmt.Errorf("engine: UDP counter %s: %w", name, err)
			}
		}
	}
	return nil
}
