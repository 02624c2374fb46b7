//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/libra-ina/libra/wire"
)

// FeederFrames is the number of frames of a [Feeder], a power of two.
const FeederFrames = 64

// Feeder measures the aggregator's program without a network: it gives the
// program a new frame in every iteration of a test run (BPF_PROG_TEST_RUN),
// inside the kernel. Repeating a test run with one frame would not measure what
// we want: the frame has become its own answer after the first time, and its
// sequence number a duplicate. A system call for each frame would measure the
// system call.
//
// The feeder is an XDP program: it restores the frame's length, copies the next
// of its frames from a map into it, with the next sequence number and the
// checksum that belongs to it, and makes a tail call into the program under
// test. What that costs by itself is measured with a program that does nothing.
type Feeder struct {
	frame   []byte
	program *ebpf.Program // feeds the aggregator's program
	empty   *ebpf.Program // feeds a program that does nothing
	closers []interface{ Close() error }
}

const (
	feederSize = 2048 // bytes of the map for each frame, a power of two
	seqAt      = wire.EnvelopeLen + 8
	checksumAt = wire.EnvelopeLen - 2
	// A frame is followed by the sum, without the sequence number, that its
	// checksum complements.
	feederSumAt = feederSize - 4

	actionAborted = 0 // XDP_ABORTED of <linux/bpf.h>
	actionPass    = 2 // XDP_PASS
)

// NewFeeder returns a feeder of FeederFrames sealed, untagged frames of equal
// length with sequence number 0, which take turns. Sequence numbers count from 1
// on and are common to all frames. answer is the length of the frames' answers.
func (a *Aggregator) NewFeeder(frames [][]byte, answer int) (_ *Feeder, err error) {
	f := &Feeder{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bpf: feeder: %w", err), f.Close())
		}
	}()
	if len(frames) != FeederFrames {
		return nil, fmt.Errorf("%d frames, want %d", len(frames), FeederFrames)
	}
	f.frame = frames[0]
	value := make([]byte, FeederFrames*feederSize)
	for i, frame := range frames {
		if len(frame) != len(f.frame) || len(frame) > feederSumAt {
			return nil, fmt.Errorf("frame %d has %d bytes, the first one %d, the limit is %d", i, len(frame), len(f.frame), feederSumAt)
		}
		v := value[i*feederSize:]
		copy(v, frame)
		binary.NativeEndian.PutUint32(v[feederSumAt:], uint32(^binary.BigEndian.Uint16(v[checksumAt:])))
	}
	store, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1})
	if err != nil {
		return nil, explain(err)
	}
	f.closers = append(f.closers, store)
	if err := store.Put(uint32(0), value); err != nil {
		return nil, err
	}
	idle, err := newIdle(answer - len(f.frame))
	if err != nil {
		return nil, explain(err)
	}
	f.closers = append(f.closers, idle)
	if f.program, err = f.feed(store, a.objects.Aggregate); err != nil {
		return nil, explain(err)
	}
	if f.empty, err = f.feed(store, idle); err != nil {
		return nil, explain(err)
	}
	return f, nil
}

// newIdle returns a program that only changes a frame's length to that of its
// answer, so that the feeder has to change it back.
func newIdle(longer int) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(longer)),
		asm.FnXdpAdjustTail.Call(),
		asm.Mov.Imm(asm.R0, actionPass),
		asm.Return(),
	}})
}

// feed returns the program that gives the stored frames to target.
func (f *Feeder) feed(store *ebpf.Map, target *ebpf.Program) (*ebpf.Program, error) {
	seq, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, seq)
	targets, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: target}},
	})
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, targets)
	n := int32(len(f.frame))
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnXdpGetBuffLen.Call(),
		asm.Mov.Imm(asm.R2, n),
		asm.Sub.Reg(asm.R2, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpAdjustTail.Call(),

		asm.LoadMapValue(asm.R1, seq.FD(), 0),
		asm.LoadMem(asm.R8, asm.R1, 0, asm.Word),
		asm.Add.Imm(asm.R8, 1),
		asm.StoreMem(asm.R1, 0, asm.R8, asm.Word), // R8: sequence number

		asm.Mov.Reg(asm.R2, asm.R8),
		asm.And.Imm(asm.R2, FeederFrames-1),
		asm.Mul.Imm(asm.R2, feederSize),
		asm.LoadMapValue(asm.R7, store.FD(), 0),
		asm.Add.Reg(asm.R7, asm.R2), // R7: frame

		asm.LoadMem(asm.R3, asm.R7, feederSumAt, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.RSh.Imm(asm.R4, 16),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.And.Imm(asm.R4, 0xffff),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R3), // fold
		asm.RSh.Imm(asm.R4, 16),
		asm.And.Imm(asm.R3, 0xffff),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R3),
		asm.RSh.Imm(asm.R4, 16),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Xor.Imm(asm.R3, 0xffff),
		asm.JNE.Imm(asm.R3, 0, "present"),
		asm.Mov.Imm(asm.R3, 0xffff),
		asm.HostTo(asm.BE, asm.R3, asm.Half).WithSymbol("present"),
		asm.StoreMem(asm.R7, checksumAt, asm.R3, asm.Half),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.HostTo(asm.BE, asm.R3, asm.Word),
		asm.StoreMem(asm.R7, seqAt, asm.R3, asm.Word),

		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Mov.Imm(asm.R4, n),
		asm.FnXdpStoreBytes.Call(),

		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, targets.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, actionAborted), // the tail call failed
		asm.Return(),
	}})
	if err == nil {
		f.closers = append(f.closers, program)
	}
	return program, err
}

// Run feeds n frames to the aggregator's program and returns the mean time of
// one in nanoseconds, less what the feeder itself takes, which is own. The kernel
// counts whole nanoseconds. If a signal interrupts the run, it starts again, and
// more than n frames are fed.
func (f *Feeder) Run(n int) (ns, own float64, err error) {
	action, total, err := f.program.Benchmark(f.frame, n, nil)
	if err == nil && action == actionAborted {
		err = errors.New("the program aborted")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("bpf: feed %d frames: %w", n, err)
	}
	_, empty, err := f.empty.Benchmark(f.frame, n, nil)
	if err != nil {
		return 0, 0, fmt.Errorf("bpf: feed %d frames to an empty program: %w", n, err)
	}
	return float64((total - empty).Nanoseconds()), float64(empty.Nanoseconds()), nil
}

// Close releases the feeder's programs and maps.
func (f *Feeder) Close() error {
	var errs []error
	for _, c := range f.closers {
		errs = append(errs, c.Close())
	}
	f.closers = nil
	return errors.Join(errs...)
}
