// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
)

// bank is one bank of a job: a BPF map with a value for each page, mapped into this process.
type bank struct {
	m     *ebpf.Map
	mem   []byte
	slots []int64 // of all pages
}

// pageBytes is the size of struct page of maps.h.
const pageBytes = aggregator.PageSlots * 8

// JobMemory returns the size of the two banks of a job of n slots, in bytes. They have whole pages:
// the kernel requires values of equal size of the inner maps of a map.
func JobMemory(n int) uint64 {
	return 2 * pageBytes * uint64(aggregator.JobConfig{Slots: n}.Pages())
}

// mapMemory maps the first size bytes of a map's values into this process.
func mapMemory(m *ebpf.Map, size int) ([]byte, error) {
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("bpf: map %v into memory: %w", m, err)
	}
	return mem, nil
}

func newBank(spec *ebpf.MapSpec, pages int) (*bank, error) {
	if spec.ValueSize != pageBytes {
		return nil, fmt.Errorf("bpf: a page of the program has %d bytes, the loader's %d; run go generate",
			spec.ValueSize, pageBytes)
	}
	spec = spec.Copy()
	spec.MaxEntries = uint32(pages)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create bank: %w", tooLarge(err, pages))
	}
	mem, err := mapMemory(m, pages*pageBytes)
	if err != nil {
		return nil, errors.Join(tooLarge(err, pages), m.Close())
	}
	return &bank{m: m, mem: mem, slots: unsafe.Slice((*int64)(unsafe.Pointer(&mem[0])), pages*aggregator.PageSlots)}, nil
}

// tooLarge adds the remedy to an error for want of memory.
func tooLarge(err error, pages int) error {
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	return fmt.Errorf("this host has no %d KiB more for a bank: use fewer hot rows: %w", pages*pageBytes>>10, err)
}

// unmapBank unmaps the bank. The kernel frees it with the last reference, held by the map of banks
// or by a program that still runs.
func (b *bank) unmapBank() error {
	if b == nil {
		return nil
	}
	err := unix.Munmap(b.mem)
	b.mem, b.slots = nil, nil
	return errors.Join(err, b.m.Close())
}
