// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

func TestPreferNode(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	// Every machine has node 0; a kernel without NUMA has no mbind.
	if err := preferNode(mem, 0); err != nil && !errors.Is(err, unix.ENOSYS) {
		t.Errorf("node 0: %v", err)
	}
	if err := preferNode(mem, 64); !errors.Is(err, unix.EINVAL) {
		t.Errorf("node 64: %v, want EINVAL", err)
	}
	if node, err := numaNode("lo"); node != -1 || err != nil {
		t.Errorf("loopback is on node %d, %v", node, err)
	}
}

func TestAddressRange(t *testing.T) {
	for line, want := range map[string]bool{
		"7f0000000000-7f0000200000 rw-p 00000000 00:00 0": true,
		"AnonHugePages:      2048 kB":                     false,
		"VmFlags: rd wr mr mw me ac sd hg":                false,
		"":                                                false,
	} {
		lo, hi, ok := addressRange(line)
		if ok != want || (ok && hi-lo != 2<<20) {
			t.Errorf("%q: %#x-%#x, %v", line, lo, hi, ok)
		}
	}
}

// Steady traffic must not create garbage.
func TestHotPathDoesNotAllocate(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	sent := newPackets(t, p.a, 0, 32, 190)
	descs, done := make([]Desc, 64), make([]Frame, 64)
	round := func() {
		if _, err := p.a.Send(sent); err != nil {
			t.Fatal(err)
		}
		if err := p.a.Kick(); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(sent); {
			if _, err := p.a.Poll(EventCompletion, -1); err != nil {
				t.Fatal(err)
			}
			n, err := p.a.Completed(done)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		for got := 0; got < len(sent); {
			if _, err := p.b.Poll(EventRx, -1); err != nil {
				t.Fatal(err)
			}
			n, err := p.b.Receive(descs)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.b.Release(descs[:n]); err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for %d packets", n, len(sent))
	}
}

func TestMemoryMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	create := func(cfg UMEMConfig) func() error {
		return func() error {
			u, err := NewUMEM(cfg)
			if err == nil {
				err = u.Close()
			}
			return err
		}
	}
	// Not a size that Go's runtime maps, such as 256 kB, which would also be refused on this
	// thread.
	mmap := refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: 131 << 11}, Err: unix.EDOM}
	refused(t, ns, "map", unix.EDOM, "afxdp: map 268288 bytes for the UMEM: mmap: ", create(UMEMConfig{Frames: 131, HugePages: HugePagesOff}), mmap)
	mmap.Err = unix.ENOMEM
	refused(t, ns, "no memory", ErrMemlock, "268288 bytes are more than the system has", create(UMEMConfig{Frames: 131, HugePages: HugePagesOff}), mmap)
	populate := refuse.Call{Number: unix.SYS_MADVISE, Args: map[int]uint32{2: unix.MADV_POPULATE_WRITE}, Err: unix.EDOM}
	refused(t, ns, "populate", unix.EDOM, "madvise MADV_POPULATE_WRITE: ", create(UMEMConfig{Frames: 128, HugePages: HugePagesOff}), populate)
	huge := refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: 4 << 20}, Err: unix.EDOM}
	refused(t, ns, "huge pages", ErrNoHugePages, "2 of 2048 kB each wanted; reserve them in /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", create(UMEMConfig{Frames: 1025, HugePages: HugePagesRequire}), huge)
	// 2 MB explicitly: the machine's default may be a gigabyte.
	huge.Args = map[int]uint32{3: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB | unix.MAP_HUGE_2MB}
	refused(t, ns, "huge pages", unix.EDOM, "", create(UMEMConfig{Frames: 2048, HugePages: HugePagesRequire}), huge)
	refused(t, ns, "node", unix.EDOM, "afxdp: NUMA node of lo: ", create(UMEMConfig{Frames: 1, NUMAOf: "lo"}), refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	// Advice that the kernel does not accept is ignored.
	refused(t, ns, "advice", nil, "", create(UMEMConfig{Frames: 128}), refuse.Call{Number: unix.SYS_MADVISE, Args: map[int]uint32{2: unix.MADV_HUGEPAGE}, Err: unix.EINVAL})
	mem := make([]byte, 4096)
	for want, errno := range map[error]unix.Errno{nil: unix.ENOSYS, unix.EDOM: unix.EDOM} {
		refused(t, ns, "node", want, "afxdp: place UMEM on NUMA node 0 of x: ", func() error { return placeOn(mem, 0, "x") }, refuse.Call{Number: unix.SYS_MBIND, Err: errno})
	}
	refused(t, ns, "no node", nil, "", func() error { return placeOn(mem, -1, "x") }, refuse.Call{Number: unix.SYS_MBIND, Err: unix.EDOM})
	refused(t, ns, "maps", nil, "", func() error {
		if kind := transparentHugePages(mem); kind != PagesNormal {
			t.Errorf("pages of unknown kind are %v", kind)
		}
		return nil
	}, refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
}
