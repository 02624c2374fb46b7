package engine

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Phases of a measurement, which the harness sets and the tested program follows.
const (
	phaseWarmUp uint32 = iota
	phaseMeasure
	phaseStop
)

// usage is a process's CPU time in nanoseconds.
type usage struct {
	user, kernel uint64
}

// control is memory that the harness shares with a tested program, which may be a C
// program: bench/baselines/xdp.c has the same layout. Each group of
// fields that one side writes has its own cache line.
type control struct {
	// Written by the harness. The frame is complete: headers and payload.
	phase    atomic.Uint32
	frameLen uint32
	_        [56]byte

	// Written by the tested program.
	received atomic.Uint64 // frames that reached its memory, or answers
	reseeded atomic.Uint64 // echo: frames sent because nothing came back
	samples  atomic.Uint64 // round-trip times below
	_        [40]byte
	at       [2]usage // CPU time when measuring began and ended
	_        [32]byte

	frame     [frameRoom]byte
	roundTrip [maxSamples]uint32 // nanoseconds
}

const (
	frameRoom  = 9216
	maxSamples = 1 << 20
	// controlFD is the descriptor under which a tested program finds the memory.
	controlFD = 3
)

// newControl makes the memory and the file to hand it on with.
func newControl() (*control, *os.File, error) {
	fd, err := unix.MemfdCreate("libra-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("engine: %w", os.NewSyscallError("memfd_create", err))
	}
	f := os.NewFile(uintptr(fd), "libra-bench")
	if err := f.Truncate(int64(unsafe.Sizeof(control{}))); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("engine: size shared memory: %w", err)
	}
	c, err := mapControl(fd)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return c, f, nil
}

func mapControl(fd int) (*control, error) {
	mem, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(control{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("engine: map shared memory: %w", os.NewSyscallError("mmap", err))
	}
	return (*control)(unsafe.Pointer(&mem[0])), nil
}

func (c *control) unmap() error {
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c)))
}

// template returns the frame of the test.
func (c *control) template() []byte { return c.frame[:c.frameLen] }

// record stores a round-trip time; those beyond the room for them are not kept.
func (c *control) record(nanos int64) {
	if n := c.samples.Load(); n < maxSamples {
		c.roundTrip[n] = uint32(min(nanos, int64(^uint32(0))))
		c.samples.Store(n + 1)
	}
}

// recorded returns the stored round-trip times.
func (c *control) recorded() []uint32 { return c.roundTrip[:min(c.samples.Load(), maxSamples)] }

// ownUsage returns the CPU time of the calling process.
func ownUsage() (usage, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return usage{}, os.NewSyscallError("getrusage", err)
	}
	return usage{user: uint64(r.Utime.Nano()), kernel: uint64(r.Stime.Nano())}, nil
}
