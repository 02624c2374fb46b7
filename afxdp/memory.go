// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PageKind is the kind of pages of a UMEM.
type PageKind uint8

const (
	// PagesNormal are pages of os.Getpagesize bytes.
	PagesNormal PageKind = iota
	// PagesTransparent are ordinary memory that the kernel put, at least partly, on transparent
	// huge pages.
	PagesTransparent
	// PagesHuge are reserved huge pages (vm.nr_hugepages).
	PagesHuge
)

func (k PageKind) String() string {
	return [...]string{"normal", "transparent huge", "huge"}[k]
}

const hugePageSize = 2 << 20

// allocate maps size bytes of zeroed memory. Every page is present afterwards: registering the UMEM
// pins them all anyway, and no page fault happens later while packets move.
func allocate(size int, huge HugePages, numaOf string) ([]byte, PageKind, error) {
	if huge != HugePagesOff {
		// By name: the default size may be a gigabyte.
		rounded := (size + hugePageSize - 1) &^ (hugePageSize - 1)
		mem, err := mapPages(rounded, unix.MAP_HUGETLB|unix.MAP_HUGE_2MB, HugePagesOff, numaOf)
		if err == nil {
			return mem[:size], PagesHuge, nil
		}
		if huge == HugePagesRequire {
			return nil, 0, fmt.Errorf("%w: %d of %d kB each wanted; reserve them in /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages, "+
				"and see that the cgroup may use them (hugetlb.2MB.max): %w",
				ErrNoHugePages, rounded/hugePageSize, hugePageSize>>10, hugePageSize>>10, err)
		}
	}
	if err := checkMemoryLimit(size); err != nil {
		return nil, 0, err
	}
	mem, err := mapPages(size, 0, huge, numaOf)
	if errors.Is(err, unix.ENOMEM) {
		return nil, 0, fmt.Errorf("%w: %d bytes are more than the system has; use fewer frames: %w", ErrMemlock, size, err)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("afxdp: map %d bytes for the UMEM: %w", size, err)
	}
	return mem, PagesNormal, nil
}

// mapPages maps memory, chooses its NUMA node and makes every page present. With HugePagesTry it
// advises transparent huge pages, else against them.
func mapPages(size, flags int, transparent HugePages, numaOf string) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if transparent == HugePagesTry {
		advice = unix.MADV_HUGEPAGE
	}
	// Only advice: it fails on kernels without transparent huge pages, and on huge pages.
	_ = unix.Madvise(mem, advice)
	err = place(mem, numaOf)
	if err == nil {
		err = populate(mem)
	}
	if err != nil {
		return nil, errors.Join(err, release(mem))
	}
	return mem, nil
}

// place chooses the NUMA node of fresh memory.
func place(mem []byte, numaOf string) error {
	if numaOf == "" {
		return nil
	}
	node, err := numaNode(numaOf)
	if err != nil {
		return err
	}
	return placeOn(mem, node, numaOf)
}

// placeOn places memory on the node of an interface: -1 for a machine with one node,
// or a virtual interface.
func placeOn(mem []byte, node int, numaOf string) error {
	if node < 0 {
		return nil
	}
	if err := preferNode(mem, node); err != nil && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("afxdp: place UMEM on NUMA node %d of %s: %w", node, numaOf, err)
	}
	return nil
}

// populate makes every page present. Touching huge pages instead would kill the process if there
// are none: mmap reserves them, but a cgroup's limit counts when a page is first used
// (hugetlb.2MB.max of https://docs.kernel.org/admin-guide/cgroup-v2.html).
func populate(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("madvise MADV_POPULATE_WRITE", err)
		}
	}
}

// numaNode returns the NUMA node of an interface's device, -1 for none.
func numaNode(ifname string) (int, error) {
	if strings.ContainsAny(ifname, "/\x00") || ifname == "." || ifname == ".." { // the rule of the kernel: dev_valid_name
		return 0, fmt.Errorf("%w: UMEMConfig.NUMAOf %q is not an interface's name", ErrConfig, ifname)
	}
	b, err := os.ReadFile("/sys/class/net/" + ifname + "/device/numa_node")
	if errors.Is(err, os.ErrNotExist) {
		if _, err := interfaceByName(ifname); err != nil {
			return 0, fmt.Errorf("afxdp: UMEMConfig.NUMAOf: %w", err)
		}
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("afxdp: NUMA node of %s: %w", ifname, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// release unmaps memory from allocate.
func release(mem []byte) error {
	return unix.Munmap(mem[:cap(mem)])
}

// transparentHugePages reads from /proc/self/smaps whether any of mem is on transparent huge pages.
func transparentHugePages(mem []byte) PageKind {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return PagesNormal
	}
	defer f.Close()
	return pagesAt(f, uint64(addressOf(mem)))
}

// pagesAt finds an address in the text of smaps.
func pagesAt(smaps io.Reader, address uint64) PageKind {
	inside := false
	for sc := bufio.NewScanner(smaps); sc.Scan(); {
		line := sc.Text()
		if lo, hi, ok := addressRange(line); ok {
			inside = lo <= address && address < hi
			continue
		}
		if size, ok := strings.CutPrefix(line, "AnonHugePages:"); inside && ok {
			if strings.TrimSpace(size) == "0 kB" {
				return PagesNormal
			}
			return PagesTransparent
		}
	}
	return PagesNormal
}

// addressRange parses the first line of a mapping in smaps, "7f00-7f80 rw-p ...".
func addressRange(line string) (lo, hi uint64, ok bool) {
	span, _, _ := strings.Cut(line, " ")
	a, b, found := strings.Cut(span, "-")
	if !found {
		return 0, 0, false
	}
	lo, err1 := strconv.ParseUint(a, 16, 64)
	hi, err2 := strconv.ParseUint(b, 16, 64)
	return lo, hi, err1 == nil && err2 == nil
}
