package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
)

// attach puts the programs that count and reflect on the opposite end.
func (b *bed) attach() error {
	return b.net.Switch().Do(func() (err error) {
		b.attached, err = link.AttachXDP(link.XDPOptions{
			Program: b.programs.CountAndDrop, Interface: b.host().PortIndex, Flags: link.XDPDriverMode,
		})
		if err != nil {
			return fmt.Errorf("engine: attach the opposite end's program: %w", err)
		}
		return nil
	})
}

// detach makes room for another program on the opposite end.
func (b *bed) detach() error {
	if b.attached == nil {
		return nil
	}
	err := b.attached.Close()
	b.attached = nil
	return err
}

// aggregate makes the opposite end an XDP aggregator with a job, until undo.
func (b *bed) aggregate() (undo func() error, err error) {
	undo = func() error {
		var err error
		if b.aggregator != nil {
			err = b.aggregator.Close()
			b.aggregator = nil
		}
		return errors.Join(err, b.attach())
	}
	err = b.detach()
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
		err = b.aggregator.AddSender(pushJob, aggregator.SenderConfig{ID: pushSender, Epoch: pushEpoch, MAC: b.tested.MAC, IP: b.tested.IP})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: aggregator at the opposite end: %w", err), undo())
	}
	return undo, nil
}

// losses reads the counters of frames that were lost outside the tested program:
// at both ends of the cable, at UDP sockets of the tested end, and in the aggregator.
func (b *bed) losses() (map[string]uint64, error) {
	lost := map[string]uint64{}
	err := b.ends(func(_ int, name string, ifindex int) error {
		l, err := netlink.LinkByIndex(ifindex)
		if err != nil {
			return fmt.Errorf("engine: read counters of the %s: %w", name, err)
		}
		if s := l.Attrs().Statistics; s != nil {
			lost[name+": RX dropped"], lost[name+": TX dropped"] = s.RxDropped, s.TxDropped
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if b.aggregator != nil {
		c, err := b.aggregator.JobCounters(pushJob)
		if err != nil {
			return nil, fmt.Errorf("engine: read the aggregator's counters: %w", err)
		}
		lost["aggregator: duplicates"], lost["aggregator: refused"], lost["aggregator: raced"] = c.Duplicates, c.Refused.Total(), c.Raced
	}
	return lost, b.host().Do(func() error { return udpLosses(lost) })
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
