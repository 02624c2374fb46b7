//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
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
	slots  [aggregator.MaxSlots + wire.Lanes]int64
	frames uint64
	pairs  uint64

	entered atomic.Uint64
	left    atomic.Uint64
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
	mem, err := unix.Mmap(m.FD(), 0, int(spec.ValueSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map bank into memory: %w", err), m.Close())
	}
	return &bank{m: m, mem: mem, sums: (*bankValue)(unsafe.Pointer(&mem[0]))}, nil
}

// close releases the bank's memory; the kernel's part goes with the last
// reference, which is the map of current banks or a program that still runs.
func (b *bank) close() error {
	if b == nil {
		return nil
	}
	err := unix.Munmap(b.mem)
	b.mem, b.sums = nil, nil
	return errors.Join(err, b.m.Close())
}

// quiesce waits until every program that came to use the bank is done with it.
// Programs that come later must not stay: see enter_bank in admission.h. A
// program runs for about a microsecond.
func (b *bank) quiesce(limit time.Duration) error {
	b.sums.left.Add(0) // a full barrier between what made the bank old and what follows
	deadline := time.Now().Add(limit)
	for {
		// In this order: programs enter before they leave, so equal counts
		// mean that nobody was inside in between.
		left := b.sums.left.Load()
		if b.sums.entered.Load() == left {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d programs have been using the bank for %v", b.sums.entered.Load()-left, limit)
		}
		runtime.Gosched()
	}
}

// clear zeroes the slots of a job of n slots, and the counts.
func (b *bank) clear(n int) {
	clear(b.sums.slots[:n])
	b.sums.frames, b.sums.pairs = 0, 0
}

// closeBanks releases a job's banks, as far as it has any.
func (j *job) closeBanks() error {
	return errors.Join(j.banks[0].close(), j.banks[1].close())
}
