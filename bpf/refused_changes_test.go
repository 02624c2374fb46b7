// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// Errors of a job or a sender name it.
func TestErrorsNameJobAndSender(t *testing.T) {
	d := openWith(t, Options{Address: conformance.Aggregator.IP, MaxSenders: 3})
	sync := aggregator.JobConfig{ID: 6, Slots: 10, Mode: aggregator.Sync, Workers: 1}
	if err := errors.Join(d.AddJob(aggregator.JobConfig{ID: 5, Slots: 10}), d.AddJob(sync)); err != nil {
		t.Fatal(err)
	}
	s := aggregator.SenderConfig{ID: 77, IP: conformance.Host(0).IP}
	named := func(id uint16) aggregator.SenderConfig { s := s; s.ID = id; return s }
	if err := errors.Join(d.AddSender(5, s), d.AddSender(6, s)); err != nil {
		t.Fatal(err)
	}
	first, err := d.Swap(5)
	if err != nil {
		t.Fatal(err)
	}
	strange := named(79)
	strange.IP = netip.MustParseAddr("fd00::1")
	// In this order: the table is full after sender 81.
	for _, c := range []struct {
		want string
		call func() error
	}{
		{"job 5: sender 4242: ", func() error { _, err := d.SenderCounters(5, 4242); return err }},
		{"job 5: sender 4243: ", func() error { return d.RemoveSender(5, 4243) }},
		{"job 5: sender 77: ", func() error { return d.AddSender(5, s) }},
		{"job 5: sender 79: address fd00::1: ", func() error { return d.AddSender(5, strange) }},
		{"sender 80: all 1 workers have been admitted", func() error { return d.AddSender(6, named(80)) }},
		{"bpf: job 5: sender 82: ", func() error { return errors.Join(d.AddSender(5, named(81)), d.AddSender(5, named(82))) }},
		{"all jobs together may have 3", func() error { return d.AddSender(5, named(83)) }},
		{"job 7: ", func() error { return d.RemoveJob(7) }},
		{"job 5: " + aggregator.ErrJobExists.Error(), func() error { return d.AddJob(aggregator.JobConfig{ID: 5, Slots: 1}) }},
		{"job 5: " + aggregator.ErrBankNotCleared.Error(), func() error { _, err := d.Swap(5); return err }},
		{"job 6: " + aggregator.ErrMode.Error(), func() error { _, err := d.Swap(6); return err }},
		{"job 6: " + aggregator.ErrMode.Error() + ": ", func() error { return d.Clear(&aggregator.Bank{Job: 6}) }},
		{"job 5: " + aggregator.ErrBankNotFrozen.Error() + "", func() error { return d.Clear(&aggregator.Bank{Job: 5}) }},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	if err := d.Clear(first); err != nil {
		t.Error(err)
	}
}

// A job that cannot be created completely leaves no part behind.
func TestJobCannotBeInstalled(t *testing.T) {
	d := open(t)
	before := refuse.CountDescriptors(t)
	update := refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM)
	lut := aggregator.JobConfig{ID: 4, Slots: 10, Arithmetic: aggregator.LUT}
	sync := aggregator.JobConfig{ID: 5, Slots: 10, Mode: aggregator.Sync, Workers: 2}
	refused(t, "job", "bpf: job 5: bpf: install bank: ", func() error { return d.AddJob(sync) }, update)
	refused(t, "lookup tables", "bpf: job 4: bpf: fill lookup tables: ", func() error { return d.AddJob(lut) }, update)
	for name, m := range map[string]**ebpf.Map{
		"groups":       &d.objects.Groups,
		"set of ports": &d.objects.PortSets,
	} {
		// In its place, a map that accepts no such entry.
		whole := *m
		*m = d.objects.Counts
		err := d.AddJob(sync)
		*m = whole
		if err == nil || !strings.Contains(err.Error(), "bpf: job 5: bpf: install "+name+": ") {
			t.Errorf("%s: %v", name, err)
		}
		var id uint32
		for bank := range 2 {
			if err := d.objects.Banks.Lookup(bankKey(sync.ID, bank), &id); !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Errorf("%s: bank %d is installed: %v", name, bank, err)
			}
		}
	}
	for _, job := range []aggregator.JobConfig{lut, sync} {
		if _, err := d.JobCounters(job.ID); !errors.Is(err, aggregator.ErrNoJob) {
			t.Errorf("job %d: %v", job.ID, err)
		}
	}
	// A map of maps frees its inner maps after a grace period; descriptors are closed at once.
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	if err := errors.Join(d.AddJob(lut), d.AddJob(sync)); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestSenderCannotBeAdmitted(t *testing.T) {
	inNamespace(t, 2, func() {
		d := openWith(t, Options{Address: conformance.Aggregator.IP, MaxSenders: 1})
		d.inner.ports = d.inner.ports.Copy()
		d.inner.ports.MaxEntries = 1
		job := aggregator.JobConfig{ID: 5, Slots: 10, Mode: aggregator.Sync, Workers: 2}
		if err := d.AddJob(job); err != nil {
			t.Fatal(err)
		}
		s := conformance.Sender(0)
		refused(t, "admission", fmt.Sprintf("bpf: job 5: sender %d: ", s.ID), func() error { return d.AddSender(job.ID, s) },
			refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM))

		// Its answers have to go to both ports, and there is room for one.
		for _, port := range []string{"port0", "port1"} {
			if err := d.Attach(port, afxdp.AttachNative); err != nil {
				t.Fatal(err)
			}
		}
		err := d.AddSender(job.ID, s)
		if !errors.Is(err, unix.E2BIG) || !strings.Contains(err.Error(), "bpf: job 5: add interface ") || !strings.Contains(err.Error(), "the limit is 1") {
			t.Errorf("too many ports: %v", err)
		}
		if _, err := d.SenderCounters(job.ID, s.ID); !errors.Is(err, aggregator.ErrNoSender) {
			t.Errorf("the sender is admitted: %v", err)
		}
		if senders := d.places[job.ID].job.ports.senders; len(senders) != 0 {
			t.Errorf("answers are for %v", senders)
		}
		// Its entry, the only one, is free again.
		if err := d.Detach("port1"); err != nil {
			t.Fatal(err)
		}
		if err := d.AddSender(job.ID, s); err != nil {
			t.Fatal(err)
		}
		if got := ports(t, d.Aggregator, job.ID); len(got) != 1 || got[0] != "port0" {
			t.Errorf("ports %v", got)
		}

		// Nor can the aggregator be attached to one more port then.
		err = d.Attach("port1", afxdp.AttachNative)
		if !errors.Is(err, unix.E2BIG) || !strings.Contains(err.Error(), "bpf: job 5: ") {
			t.Errorf("attach: %v", err)
		}
		if _, ok := d.Mode("port1"); ok || programOn(t, "port1") != 0 {
			t.Error("the program stays on port1")
		}
		if got := ports(t, d.Aggregator, job.ID); len(got) != 1 || got[0] != "port0" {
			t.Errorf("ports %v", got)
		}
	})
}

// A sender that cannot be withdrawn keeps its entry, which the program still finds.
func TestSenderCannotBeWithdrawn(t *testing.T) {
	d := openWith(t, Options{Address: conformance.Aggregator.IP, MaxSenders: 2})
	for id := range uint16(2) {
		if err := d.AddJob(aggregator.JobConfig{ID: id, Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
	s := conformance.Sender(0)
	if err := errors.Join(d.AddSender(0, s), d.AddSender(1, s)); err != nil {
		t.Fatal(err)
	}
	remove := refuseBPF(unix.BPF_MAP_DELETE_ELEM, unix.EDOM)
	refused(t, "RemoveSender", fmt.Sprintf("bpf: job 0: withdraw sender %d: ", s.ID), func() error { return d.RemoveSender(0, s.ID) }, remove)
	refused(t, "RemoveJob", "", func() error { return d.RemoveJob(1) }, remove)
	if len(d.senders.free) != 0 {
		t.Errorf("entries %v are free", d.senders.free)
	}
}

// After an error each set of ports is either unchanged or as requested.
func TestPortsCannotBeChanged(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		set, err := newPortSet(d.inner.ports, aggregator.JobConfig{Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = set.closeSet() }()
		d.usePorts(t, "port0", "host0")
		a, b := d.ports[0], d.ports[1]
		only := func(p uint32) map[uint32]struct{} { return map[uint32]struct{}{p: {}} }
		refused(t, "add", fmt.Sprintf("add interface %d to its ports: ", a), func() error { return set.replacePorts(only(a)) },
			refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM))
		if len(set.members) != 0 {
			t.Errorf("members %v", set.members)
		}
		if err := set.replacePorts(only(a)); err != nil {
			t.Fatal(err)
		}
		refused(t, "remove", fmt.Sprintf("remove interface %d from its ports: ", a), func() error { return set.replacePorts(only(b)) },
			refuseBPF(unix.BPF_MAP_DELETE_ELEM, unix.EDOM))
		if want := map[uint32]struct{}{a: {}, b: {}}; !maps.Equal(set.members, want) {
			t.Errorf("members %v, want %v", set.members, want)
		}
	})
}

func TestRoutesCannotBeChanged(t *testing.T) {
	inNamespace(t, 2, func() {
		d := open(t)
		mac := conformance.Host(0).MAC
		add := func(port string) func() error { return func() error { return d.AddRoute(mac, port) } }
		update, remove := refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM), refuseBPF(unix.BPF_MAP_DELETE_ELEM, unix.EDOM)
		refused(t, "no watch", "bpf: route to port0: ", add("port0"),
			refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: unix.AF_NETLINK, 2: unix.NETLINK_GENERIC}, Err: unix.EDOM})
		if d.watch != nil || len(d.routes) != 0 {
			t.Errorf("watch %v, routes %v", d.watch, d.routes)
		}
		refused(t, "AddRoute", "bpf: route to port0: ", add("port0"), update)
		if err := add("port0")(); err != nil {
			t.Fatal(err)
		}
		refused(t, "the former target", "bpf: route to port1: ", add("port1"), remove)
		refused(t, "RemoveRoute", "bpf: remove route: ", func() error { return d.RemoveRoute(mac) }, remove)
		refused(t, "SetForwarding", "bpf: forwarding at port0: ", func() error { return d.SetForwarding("port0", false) }, remove)
		for _, err := range []error{d.AddRoute(mac, "nowhere"), d.SetForwarding("nowhere", true), d.Attach("nowhere", afxdp.AttachNative)} {
			if err == nil || !strings.Contains(err.Error(), "nowhere") {
				t.Errorf("an interface that does not exist: %v", err)
			}
		}
	})
}
