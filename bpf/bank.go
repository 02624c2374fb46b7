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

// bank is one bank of a job: a BPF map with a value for each page, mapped into this process, and
// another with the record of its blocks if the job has several pages.
type bank struct {
	m       *ebpf.Map
	mem     []byte
	slots   []int64 // of all pages
	blocks  *ebpf.Map
	touched []byte // of all pages: see aggregator.Bank
}

// pageBytes is the size of struct page of maps.h.
const pageBytes = aggregator.PageSlots * 8

// JobMemory returns the size of the two banks of a job of n slots, in bytes. They have whole pages:
// the kernel requires values of equal size of the inner maps of a map.
func JobMemory(n int) uint64 {
	pages := uint64(aggregator.JobConfig{Slots: n}.Pages())
	if pages == 1 {
		return 2 * pageBytes
	}
	return 2 * pages * (pageBytes + aggregator.PageBlocks)
}

// mapMemory maps the first size bytes of a map's values into this process.
func mapMemory(m *ebpf.Map, size int) ([]byte, error) {
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("bpf: map %v into memory: %w", m, err)
	}
	return mem, nil
}

func newBank(spec, blocks *ebpf.MapSpec, pages int) (*bank, error) {
	b, err := newPages(spec, pages)
	if err != nil || pages == 1 {
		return b, err
	}
	blocks = blocks.Copy()
	blocks.MaxEntries = uint32(pages)
	if b.blocks, err = ebpf.NewMap(blocks); err == nil {
		b.touched, err = mapMemory(b.blocks, pages*aggregator.PageBlocks)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the record of a bank's blocks: %w", tooLarge(err, pages)), b.unmapBank())
	}
	return b, nil
}

// newPages creates a bank without a record of its blocks.
func newPages(spec *ebpf.MapSpec, pages int) (*bank, error) {
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
	if b.touched != nil {
		err = errors.Join(err, unix.Munmap(b.touched))
	}
	b.mem, b.slots, b.touched = nil, nil, nil
	return errors.Join(err, b.m.Close(), b.blocks.Close())
}
