// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// refuseBPF is a command of the bpf system call that fails.
func refuseBPF(command uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_BPF, Args: map[int]uint32{0: command}, Err: err}
}

// checkErrno checks for the error of a system call that was made to fail.
func checkErrno(t *testing.T, what string, err error, want unix.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestOpenWithoutDescriptors(t *testing.T) {
	needPrivileges(t)
	refuse.Exhaust(t, "bpf: ", func() (func() error, error) {
		a, err := Open(Options{Address: conformance.Aggregator.IP})
		return a.Close, err
	})
}

func TestAddJobWithoutDescriptors(t *testing.T) {
	d := open(t)
	for _, job := range []aggregator.JobConfig{
		{ID: 5, Slots: 30},
		{ID: 6, Slots: 30, Mode: aggregator.Sync, Workers: 2},
	} {
		refuse.Exhaust(t, "bpf: job ", func() (func() error, error) {
			return func() error { return d.RemoveJob(job.ID) }, d.AddJob(job)
		})
	}
}

func TestAttachWithoutDescriptors(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		refuse.Exhaust(t, "", func() (func() error, error) {
			return func() error { return d.Detach("port0") }, d.Attach("port0", afxdp.AttachNative)
		})
		if id := programOn(t, "port0"); id != 0 {
			t.Errorf("program %d is on the interface", id)
		}
	})
}

// What cannot be counted does not keep the aggregator from working, and is told.
func TestFailuresCannotBeCounted(t *testing.T) {
	d := open(t)
	var f failures
	refuse.Exhaust(t, "frames that the kernel did not send are not counted: ", func() (func() error, error) {
		f = failures{}
		f.startCounting(d.objects.Aggregate)
		if (f.links == nil) != (f.err != nil) {
			t.Errorf("%d links, error %v", len(f.links), f.err)
		}
		return f.closeTracepoints, f.err
	})
	for name, c := range map[string]refuse.Call{
		"id of the program": refuseBPF(unix.BPF_OBJ_GET_INFO_BY_FD, unix.EDOM),
		"load":              refuseBPF(unix.BPF_PROG_LOAD, unix.EDOM),
		"attach":            refuseBPF(unix.BPF_RAW_TRACEPOINT_OPEN, unix.EDOM),
	} {
		f = failures{}
		if err := refuse.Run(func() error { f.startCounting(d.objects.Aggregate); return nil }, c); err != nil {
			t.Fatal(err)
		}
		checkErrno(t, name, f.err, unix.EDOM)
	}

	inNamespace(t, 1, func() {
		d.failures.err = errors.New("reason")
		if err := d.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		if err := d.CountsFailures(); err == nil || err.Error() != "reason" {
			t.Errorf("error %v", err)
		}
		c, err := d.Counters()
		if err != nil || c.UnsentAnswers != 0 || c.UnsentRedirects != 0 {
			t.Errorf("counters %+v, %v", c, err)
		}
		if err := d.Detach("port0"); err != nil {
			t.Error(err)
		}
	})
}
