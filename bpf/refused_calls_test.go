// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/wire"
)

// refused runs fn with calls that fail with EDOM, and checks for that error and for
// words of its text.
func refused(t *testing.T, what, words string, fn func() error, calls ...refuse.Call) {
	t.Helper()
	err := refuse.Run(fn, calls...)
	if !errors.Is(err, unix.EDOM) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: error %v, want EDOM and %q", what, err, words)
	}
}

// refuseMapping makes shared mappings of one size fail.
func refuseMapping(size int) refuse.Call {
	return refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: uint32(size), 3: unix.MAP_SHARED}, Err: unix.EDOM}
}

func TestMapsCannotBeMapped(t *testing.T) {
	d := open(t)
	before := refuse.CountDescriptors(t)
	const senders = 7
	for name, size := range map[string]int{
		"jobs":    int(unsafe.Sizeof(*d.table.jobs)),
		"senders": senders * int(unsafe.Sizeof(aggregateSender{})),
	} {
		refused(t, name, "into memory", func() error {
			_, err := Open(Options{Address: conformance.Aggregator.IP, MaxSenders: senders})
			return err
		}, refuseMapping(size))
	}
	refused(t, "bank", "bpf: job 5: ", func() error {
		return d.AddJob(aggregator.JobConfig{ID: 5, Slots: 1})
	}, refuseMapping(pageBytes))
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// A hot set larger than the host's memory is refused with what helps, and leaves nothing behind.
func TestNoMemoryForPages(t *testing.T) {
	d := open(t)
	before := refuse.CountDescriptors(t)
	job := aggregator.JobConfig{ID: 5, Slots: 40 * aggregator.PageSlots}
	call := refuseMapping(40 * pageBytes)
	call.Err = unix.ENOMEM
	err := refuse.Run(func() error { return d.AddJob(job) }, call)
	if want := "this host has no 20480 KiB more for a bank: use fewer hot rows"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	job.Slots = 1
	if err := d.AddJob(job); err != nil {
		t.Errorf("with fewer: %v", err)
	}
}

// The program and its loader must agree, which is checked.
func TestProgramThatDoesNotFit(t *testing.T) {
	needPrivileges(t)
	spec, err := loadAggregate()
	if err != nil {
		t.Fatal(err)
	}
	spec.Variables[aggregateVarAddress] = spec.Variables[aggregateVarBudgetCost]
	if _, err := openSpec(spec, Options{Address: conformance.Aggregator.IP}); err == nil || !strings.HasPrefix(err.Error(), "bpf: ") {
		t.Errorf("a variable of another size: %v", err)
	}
	d := open(t)
	d.inner.bank = d.inner.bank.Copy()
	size := d.inner.bank.ValueSize
	d.inner.bank.ValueSize += 8
	err = d.AddJob(aggregator.JobConfig{ID: 5, Slots: 1})
	want := fmt.Sprintf("a page of the program has %d bytes, the loader's %d;", size+8, size)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a bank of another size: %v, want %q", err, want)
	}
}

func TestCountersCannotBeRead(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		counters := func() error { _, err := d.Counters(); return err }
		refused(t, "program's", "bpf: read counters: ", counters, refuseBPF(unix.BPF_MAP_LOOKUP_ELEM, unix.EDOM))
		if err := d.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		if d.CountsFailures() != nil {
			t.Skip(d.CountsFailures())
		}
		if err := d.failures.objects.Failed.Close(); err != nil {
			t.Fatal(err)
		}
		if err := counters(); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "read counters of failures") {
			t.Errorf("of failures: %v", err)
		}
	})
}

// There are jobs up to aggregator.MaxJobs.
func TestNoSuchPlace(t *testing.T) {
	d := open(t)
	for name, call := range map[string]func(id uint16) error{
		"AddJob":         func(id uint16) error { return d.AddJob(aggregator.JobConfig{ID: id, Slots: 1}) },
		"RemoveJob":      d.RemoveJob,
		"AddSender":      func(id uint16) error { return d.AddSender(id, conformance.Sender(0)) },
		"RemoveSender":   func(id uint16) error { return d.RemoveSender(id, 1) },
		"Swap":           func(id uint16) error { _, err := d.Swap(id); return err },
		"Clear":          func(id uint16) error { return d.Clear(&aggregator.Bank{Job: id}) },
		"JobCounters":    func(id uint16) error { _, err := d.JobCounters(id); return err },
		"SenderCounters": func(id uint16) error { _, err := d.SenderCounters(id, 1); return err },
	} {
		for _, id := range []uint16{aggregator.MaxJobs, 65535} {
			if err := call(id); !errors.Is(err, aggregator.ErrNoJob) && !errors.Is(err, aggregator.ErrConfig) {
				t.Errorf("%s(%d): %v", name, id, err)
			}
		}
	}
}

// Kernels before 6.3 do not report which interfaces support XDP transmission: all are assumed to.
func TestKernelDoesNotTellTargets(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		old := refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: unix.AF_NETLINK, 2: unix.NETLINK_GENERIC}, Err: unix.ENOENT}
		if err := refuse.Run(func() error { return d.AddRoute(conformance.Host(0).MAC, "port0") }, old); err != nil {
			t.Fatal(err)
		}
		d.usePorts(t, "port0")
		var target uint32
		if err := d.objects.Ports.Lookup(d.ports[0], &target); err != nil || d.watch != nil {
			t.Errorf("target %d, %v, watch %v", target, err, d.watch)
		}
	})
}

func TestAttachAndDetach(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		if err := d.Detach("port0"); err != nil {
			t.Errorf("not attached: %v", err)
		}
		if mode, ok := d.Mode("port0"); mode != 0 || ok {
			t.Errorf("not attached: mode %v, %v", mode, ok)
		}
		refused(t, "Attach", "port0", func() error { return d.Attach("port0", afxdp.AttachNative) },
			refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
		if id := programOn(t, "port0"); id != 0 {
			t.Errorf("program %d is on the interface", id)
		}
		if err := d.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		if err := d.Attach("port0", afxdp.AttachNative); err == nil || err.Error() != "bpf: the aggregator is attached to port0 already" {
			t.Errorf("twice: %v", err)
		}
		other, err := testbed.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		err = other.Do(func() error {
			err := d.Attach("lo", afxdp.AttachGeneric)
			if id := programOn(t, "lo"); id != 0 {
				t.Errorf("program %d is on the interface", id)
			}
			return err
		})
		if !errors.Is(err, ErrNamespace) {
			t.Errorf("error %v, want ErrNamespace", err)
		}
		if d.CountsFailures() == nil {
			refused(t, "Detach", "", func() error { return d.Detach("port0") }, refuseBPF(unix.BPF_MAP_DELETE_ELEM, unix.EDOM))
			refused(t, "Attach", "bpf: count what interface ", func() error { return d.Attach("port0", afxdp.AttachNative) },
				refuseBPF(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM))
			if id := programOn(t, "port0"); id != 0 {
				t.Errorf("program %d is on the interface", id)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if mode, ok := d.Mode("port0"); mode != 0 || ok {
			t.Errorf("after Close the mode is %v, %v", mode, ok)
		}
		for i, err := range []error{
			d.Attach("port0", afxdp.AttachNative),
			d.AddRoute(conformance.Host(0).MAC, "port0"),
			d.RemoveRoute(conformance.Host(0).MAC),
			d.SetForwarding("port0", true),
		} {
			if !errors.Is(err, aggregator.ErrClosed) {
				t.Errorf("call %d after Close: %v, want ErrClosed", i, err)
			}
		}
	})
}

// If a process cannot learn its capabilities, the error does not claim that it lacks some.
func TestCapabilitiesAreUnknown(t *testing.T) {
	needPrivileges(t)
	err := refuse.Run(func() error {
		_, err := Open(Options{Address: conformance.Aggregator.IP})
		return err
	}, refuse.Call{Number: unix.SYS_CAPGET, Err: unix.EDOM}, refuseBPF(unix.BPF_MAP_CREATE, unix.EPERM))
	if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrPermission) {
		t.Errorf("error %v, want EPERM alone", err)
	}
}

func TestNamespaceErrors(t *testing.T) {
	needPrivileges(t)
	n := &namespace{}
	refused(t, "settle", "network namespace: ", n.settleIn, refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	mine := errors.New("what the function returns")
	if err := n.runInside(func() error { return mine }); !errors.Is(err, mine) {
		t.Errorf("before there is one: %v", err)
	}
	if err := n.closeNamespace(); err != nil {
		t.Errorf("before there is one: %v", err)
	}
	before := refuse.CountDescriptors(t)
	for range 2 {
		if err := n.settleIn(); err != nil {
			t.Fatal(err)
		}
		if now := refuse.CountDescriptors(t); now != before+1 {
			t.Errorf("%d descriptors are open, %d before", now, before)
		}
	}
	other, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Do(n.settleIn); !errors.Is(err, ErrNamespace) {
		t.Errorf("in another namespace: %v, want ErrNamespace", err)
	}
	if err := other.Do(func() error { return n.runInside(func() error { return mine }) }); !errors.Is(err, mine) {
		t.Errorf("from another namespace: %v", err)
	}
	if err := n.closeNamespace(); err != nil {
		t.Error(err)
	}
}

// A MaxSenders of 0 means the documented default, and the routes have room for the senders and for
// a server of each job.
func TestMaxSenders(t *testing.T) {
	for senders, want := range map[int]uint32{0: 1024, 3: 3} {
		d := openWith(t, Options{Address: conformance.Aggregator.IP, MaxSenders: senders})
		if n := d.objects.Senders.MaxEntries(); n != want {
			t.Errorf("MaxSenders %d: room for %d", senders, n)
		}
		if n := d.objects.Admissions.MaxEntries(); n != want {
			t.Errorf("MaxSenders %d: room for %d admissions", senders, n)
		}
		if n := d.objects.Routes.MaxEntries(); n != want+aggregator.MaxJobs {
			t.Errorf("MaxSenders %d: room for %d routes", senders, n)
		}
		if len(d.senders.free) != int(want) || d.senders.free[want-1] != 0 || d.port != wire.DefaultPort {
			t.Errorf("MaxSenders %d: %d free, port %d", senders, len(d.senders.free), d.port)
		}
	}
}
