package engine

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
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
