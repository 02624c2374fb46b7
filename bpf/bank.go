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
	"github.com/libra-ina/libra/wire"
)

// bank is one bank of a job: a BPF map with a single value, mapped into this
// process.
type bank struct {
	m    *ebpf.Map
	mem  []byte
	sums *bankValue
}

// bankValue is struct bank of maps.h.
type bankValue struct {
	slots  [aggregator.PageSlots + wire.Lanes]int64
	frames uint64
	pairs  uint64
}

// JobMemory is the size of a job's two banks, in bytes. It does not depend on the number of slots:
// the kernel requires equal inner maps of a map.
const JobMemory = 2 * uint64(unsafe.Sizeof(bankValue{}))

// mapMemory maps the first size bytes of a map's values into this process.
func mapMemory(m *ebpf.Map, size int) ([]byte, error) {
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("bpf: map %v into memory: %w", m, err)
	}
	return mem, nil
}

func newBank(spec *ebpf.MapSpec) (*bank, error) {
	if spec.ValueSize != uint32(unsafe.Sizeof(bankValue{})) {
		return nil, fmt.Errorf("bpf: a bank of the program has %d bytes, the loader's %d; run go generate",
			spec.ValueSize, unsafe.Sizeof(bankValue{}))
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create bank: %w", err)
	}
	mem, err := mapMemory(m, int(spec.ValueSize))
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &bank{m: m, mem: mem, sums: (*bankValue)(unsafe.Pointer(&mem[0]))}, nil
}

// unmapBank unmaps the bank. The kernel frees it with the last reference, held by the map of banks
// or by a program that still runs.
func (b *bank) unmapBank() error {
	if b == nil {
		return nil
	}
	err := unix.Munmap(b.mem)
	b.mem, b.sums = nil, nil
	return errors.Join(err, b.m.Close())
}

// clearSlots zeroes the slots of a job of n slots, and the counts.
func (b *bank) clearSlots(n int) {
	clear(b.sums.slots[:n])
	b.sums.frames, b.sums.pairs = 0, 0
}
