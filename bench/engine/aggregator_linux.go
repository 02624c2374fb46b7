package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
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

// aggregate makes the opposite end an XDP aggregator with a fresh job, until undo.
func (b *bed) aggregate() (undo func() error, err error) {
	if err := b.detach(); err != nil {
		return nil, fmt.Errorf("engine: detach the opposite end's program: %w", err)
	}
	port := b.host().PortName
	undo = func() error {
		var errs []error
		if b.aggregator != nil {
			errs = append(errs, b.net.Switch().Do(func() error { return b.aggregator.Detach(port) }))
			if err := b.aggregator.RemoveJob(pushJob); !errors.Is(err, aggregator.ErrNoJob) {
				errs = append(errs, err)
			}
		}
		return errors.Join(append(errs, b.attach())...)
	}
	err = b.net.Switch().Do(func() (err error) {
		if b.aggregator == nil {
			if b.aggregator, err = bpf.Open(bpf.Options{Address: b.opposite.IP}); err != nil {
				return err
			}
		}
		job := aggregator.JobConfig{
			ID: pushJob, Epoch: pushEpoch, Mode: aggregator.Combine, Arithmetic: aggregator.Exact,
			Exp:   aggregator.DefaultExp(aggregator.Exact),
			Slots: hotKeys, Layouts: aggregator.Dense,
		}
		if err := b.aggregator.AddJob(job); err != nil {
			return err
		}
		sender := aggregator.SenderConfig{ID: pushSender, Epoch: pushEpoch, MAC: b.tested.MAC, IP: b.tested.IP}
		if err := b.aggregator.AddSender(pushJob, sender); err != nil {
			return err
		}
		return b.aggregator.Attach(port, afxdp.AttachNative)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: aggregator at the opposite end: %w", err), undo())
	}
	return undo, nil
}

// aggregatorLosses adds counters of the aggregator's job, if there is one.
func (b *bed) aggregatorLosses(lost map[string]uint64) error {
	if b.aggregator == nil {
		return nil
	}
	c, err := b.aggregator.JobCounters(pushJob)
	if errors.Is(err, aggregator.ErrNoJob) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine: read the aggregator's counters: %w", err)
	}
	lost["aggregator: duplicates"] = c.Duplicates
	lost["aggregator: refused"] = c.Refused.Total()
	lost["aggregator: raced"] = c.Raced
	return nil
}

// losses reads the counters of frames that were lost outside the tested program:
// at both ends of the cable, at UDP sockets of the tested end, and in the aggregator.
func (b *bed) losses() (map[string]uint64, error) {
	lost := map[string]uint64{}
	for _, end := range []struct {
		name  string
		node  *testbed.Node
		index int
	}{{"tested end", b.host(), b.host().Index}, {"opposite end", b.net.Switch(), b.host().PortIndex}} {
		err := end.node.Do(func() error {
			l, err := netlink.LinkByIndex(end.index)
			if err != nil {
				return err
			}
			if s := l.Attrs().Statistics; s != nil {
				lost[end.name+": RX dropped"] = s.RxDropped
				lost[end.name+": TX dropped"] = s.TxDropped
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("engine: read counters of the %s: %w", end.name, err)
		}
	}
	if err := b.aggregatorLosses(lost); err != nil {
		return nil, err
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
