// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// A program that another process attached, such as a component of libxdp's dispatcher, delivers
// packets through its pinned map: without Attach, and alongside that program.
func TestPinnedMap(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	theirs := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	path := bpfFS(t) + "/xsks_map" // as libxdp names it
	if err := theirs.XSKMap().Pin(path); err != nil {
		t.Fatal(err)
	}
	sockets, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: sockets})
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	transmit(t, a, newPackets(t, a, 0, 50, 100))
	if diff := cmp.Diff(upTo(0, 50), receive(t, b, 50)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := ns.Do(func() error { _, err := Attach(AttachConfig{Interface: "b", Match: MatchAll()}); return err }); err == nil {
		t.Error("their program was replaced")
	} else {
		wantErr(t, err, ErrProgramAttached)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		ifi, err := net.InterfaceByName("b")
		if err == nil && attachedProgram(ifi.Index) == 0 {
			t.Error("their program went with our socket")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A map that cannot be written is reported, both when a socket enters it and when one leaves it.
func TestUnwritableMap(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	refuses := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrConfig) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "queue 0 cannot be "+what) {
			t.Errorf("%v, want that it cannot be %s", err, what)
		}
	}
	for _, flags := range []uint32{0, unix.BPF_F_RDONLY} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4, Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if flags == 0 {
			s, err := tryOpen(ns, pool, Config{Interface: "b", XSKMap: m})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Freeze(); err != nil {
				t.Fatal(err)
			}
			refuses("taken out of", s.Close())
			if _, err := s.Reclaim(); err != nil {
				t.Error(err)
			}
		}
		_, err = tryOpen(ns, pool, Config{Interface: "b", XSKMap: m})
		refuses("entered in", err)
		if n := pool.Available(); n != 64 {
			t.Errorf("%d of 64 frames are free", n)
		}
	}
}

// A process that may not call bpf(2) at all, as in containers, gets that error, not one about the
// map.
func TestBPFIsRefused(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	refused(t, ns, "bpf", ErrPermission, "the process may not call bpf(2)", func() error {
		_, err := Open(pool, Config{Interface: "b", XSKMap: m})
		return err
	}, refuse.Call{Number: unix.SYS_BPF, Err: unix.EPERM})
}

// bpfFS returns the path of a BPF file system that is not mounted anywhere, and ends with its
// descriptor.
func bpfFS(t *testing.T) string {
	t.Helper()
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal("fsopen:", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal("fsconfig:", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal("fsmount:", err)
	}
	t.Cleanup(func() { unix.Close(root) })
	return fmt.Sprintf("/proc/self/fd/%d", root)
}
