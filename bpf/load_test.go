// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/sys"
)

func TestManagement(t *testing.T) {
	d := open(t)
	conformance.TestPlaces(t, d)
	conformance.TestManagement(t, d)
}

func TestOpenWantsIPv4(t *testing.T) {
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("fd00::1")} {
		if _, err := Open(Options{Address: a}); !errors.Is(err, aggregator.ErrUnsupported) {
			t.Errorf("%v: error %v, want ErrUnsupported", a, err)
		}
	}
}

func TestSenderTableIsBounded(t *testing.T) {
	needPrivileges(t)
	a, err := Open(Options{Address: conformance.Aggregator.IP, MaxSenders: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for id := range uint16(2) {
		if err := a.AddJob(aggregator.JobConfig{ID: id, Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
	add := func(job, sender uint16) error {
		return a.AddSender(job, aggregator.SenderConfig{ID: sender, IP: conformance.Host(0).IP})
	}
	if err := errors.Join(add(0, 7), add(1, 7)); err != nil {
		t.Fatal(err)
	}
	if err := add(1, 8); !errors.Is(err, aggregator.ErrTooManySenders) {
		t.Errorf("error %v, want ErrTooManySenders", err)
	}
	if err := a.RemoveJob(0); err != nil {
		t.Fatal(err)
	}
	if err := add(1, 8); err != nil {
		t.Errorf("after a job was removed: %v", err)
	}
}

// withCapabilities runs fn on a thread that has only these capabilities.
func withCapabilities(t *testing.T, fn func(), bits ...int) {
	t.Helper()
	needPrivileges(t)
	if err := sys.OwnThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		for _, bit := range bits {
			data[bit/32].Effective |= 1 << (bit % 32)
			data[bit/32].Permitted |= 1 << (bit % 32)
		}
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		fn()
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestLoadsWithDocumentedCapabilities(t *testing.T) {
	withCapabilities(t, func() {
		a, err := Open(Options{Address: conformance.Aggregator.IP, Budget: -1})
		if err != nil {
			t.Errorf("%+v", err)
			return
		}
		if err := conformance.Setup(a); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON)
}

func TestNamesMissingCapabilities(t *testing.T) {
	for _, c := range []struct {
		has  []int
		need string
	}{
		{nil, "need CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON;"},
		{[]int{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "need CAP_PERFMON;"},
		{[]int{unix.CAP_BPF, unix.CAP_PERFMON}, "need CAP_NET_ADMIN;"},
		{[]int{unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, "need CAP_BPF;"},
	} {
		withCapabilities(t, func() {
			_, err := Open(Options{Address: conformance.Aggregator.IP, Budget: -1})
			if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), c.need) {
				t.Errorf("with %v: error %v, want ErrPermission: %s", c.has, err, c.need)
			}
		}, c.has...)
	}
}

// The verifier accepts a program of at most a million steps. Kernels differ in how many they need:
// for this one Linux 6.18 803,703, of which the 25 stripes of a frame take nearly all. Linux 6.1
// took 609,627 where 6.18 took 771,947.
func TestVerifierHasRoom(t *testing.T) {
	info, err := open(t).objects.Aggregate.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		t.Skip("the kernel does not tell")
	}
	t.Logf("%d steps", n)
	if n > 600_000 {
		t.Errorf("the verifier took %d steps; others may take more than the million that is allowed", n)
	}
}
