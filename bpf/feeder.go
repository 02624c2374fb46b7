// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/wire"
)

// FeederFrames is how many frames a [Feeder] has where their pairs need not be more than caches
// hold.
const FeederFrames = 64

// manyFrames is the largest number of frames of a feeder.
const manyFrames = 4096

// Feeder measures the aggregator's program without a network: it gives the program a new frame in
// every iteration of a test run (BPF_PROG_TEST_RUN), inside the kernel. A repeated test run with
// one frame would not do: after the first iteration the frame has become its own answer, and its
// sequence number is a duplicate. A system call for each frame would measure the system call.
//
// The feeder is an XDP program (feeder.c): it restores the frame's length, copies the next of its
// frames from a map into it, with the next sequence number and the matching checksum, and makes a
// tail call to the program under test. Its own cost is measured with a program that does nothing.
type Feeder struct {
	frame   []byte
	program *ebpf.Program // feeds the aggregator's program
	empty   *ebpf.Program // feeds a program that does nothing
	closers []io.Closer
}

const checksumAt = wire.EnvelopeLen - 2 // offset in a frame

const actionAborted = 0 // XDP_ABORTED of <linux/bpf.h>

// NewFeeder returns a feeder of sealed, untagged frames of equal length with sequence number 0,
// which are fed in turn. Their number is a power of two, 4,096 at most. Sequence numbers start at 1
// and run through all frames. answer is the length of the answers.
func (a *Aggregator) NewFeeder(frames [][]byte, answer int) (_ *Feeder, err error) {
	f := &Feeder{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bpf: feeder: %w", err), f.Close())
		}
	}()
	if n := len(frames); bits.OnesCount(uint(n)) != 1 || n > manyFrames {
		return nil, fmt.Errorf("%d frames, want a power of two up to %d", n, manyFrames)
	}
	f.frame = frames[0]
	stored := make([]feederStored, len(frames))
	for i, frame := range frames {
		s := &stored[i]
		if len(frame) != len(f.frame) || len(frame) > len(s.Bytes) {
			return nil, fmt.Errorf("frame %d has %d bytes, the first one %d, the limit is %d", i, len(frame), len(f.frame),
				len(s.Bytes))
		}
		copy(s.Bytes[:], frame)
		s.Sum = uint32(^binary.BigEndian.Uint16(s.Bytes[checksumAt:]))
	}
	if f.program, err = f.feed(stored, answer, a.objects.Aggregate); err != nil {
		return nil, err
	}
	if f.empty, err = f.feed(stored, answer, nil); err != nil {
		return nil, err
	}
	return f, nil
}

// feed returns a program that feeds the frames to target, or to a program that only sets their
// length to that of the answer.
func (f *Feeder) feed(frames []feederStored, answer int, target *ebpf.Program) (*ebpf.Program, error) {
	spec, err := loadFeeder()
	if err != nil {
		return nil, err
	}
	spec.Maps[feederMapFrames].MaxEntries = uint32(len(frames))
	if err := errors.Join(
		spec.Variables[feederVarLast].Set(uint32(len(frames)-1)),
		spec.Variables[feederVarLength].Set(uint32(len(f.frame))),
		spec.Variables[feederVarLonger].Set(int32(answer-len(f.frame))),
	); err != nil {
		return nil, err
	}
	o := &feederObjects{}
	if err := load(spec, o); err != nil {
		return nil, err
	}
	f.closers = append(f.closers, o)
	for i := range frames {
		if err := o.Frames.Put(uint32(i), &frames[i]); err != nil {
			return nil, err
		}
	}
	if target == nil {
		target = o.Idle
	}
	return o.Feed, o.Target.Put(uint32(0), target)
}

// emptyRuns is how often Run measures the feeder alone before it gives up.
const emptyRuns = 10

// Run feeds n frames to the aggregator's program and returns the mean time per frame in
// nanoseconds, without the feeder's own time, which is own. The kernel counts whole nanoseconds. If
// a signal interrupts the run, it starts again, and more than n frames are fed. The feeder alone
// cannot take as long as feeder and program together: if it seems to, other work has taken the
// processor, and it is measured again.
func (f *Feeder) Run(n int) (ns, own float64, err error) {
	action, total, err := f.program.Benchmark(f.frame, n, nil)
	if err == nil && action == actionAborted {
		err = errors.New("the program aborted")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("bpf: feed %d frames: %w", n, err)
	}
	for range emptyRuns {
		_, empty, err := f.empty.Benchmark(f.frame, n, nil)
		if err != nil {
			return 0, 0, fmt.Errorf("bpf: feed %d frames to an empty program: %w", n, err)
		}
		if empty < total {
			return float64((total - empty).Nanoseconds()), float64(empty.Nanoseconds()), nil
		}
	}
	return 0, 0, fmt.Errorf("bpf: feed %d frames: a frame took %v, and no less in %d runs without the aggregator's program: feed more frames, or stop other work on this machine", n, total, emptyRuns)
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
