// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// Phases of a measurement, which the parent sets and the tested program follows.
const (
	phaseWarmUp uint32 = iota
	phaseMeasure
	phaseStop
)

// control is memory that the parent shares with a tested program, which may be
// the C program: bench/baselines/xdp.c has the same layout. A request and an
// answer of package child at each limit would disturb what is measured. Each group
// of fields that one side writes has its own cache line.
type control struct {
	// Written by the parent. The frame is complete: headers and payload.
	phase    atomic.Uint32
	frameLen uint32
	_        [56]byte

	// Written by the tested program.
	received atomic.Uint64 // frames that reached its memory, or answers
	samples  atomic.Uint64 // round-trip times below
	_        [48]byte
	at       [2]sys.Usage // CPU time when measuring began and ended
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

func controlIn(mem []byte) *control { return (*control)(unsafe.Pointer(&mem[0])) }

// recordTrip stores a round-trip time; those beyond the room for them are not kept.
func (c *control) recordTrip(nanos int64) {
	if n := c.samples.Load(); n < maxSamples {
		c.roundTrip[n] = uint32(min(nanos, int64(^uint32(0))))
		c.samples.Store(n + 1)
	}
}

// programProcess is a process that follows the control memory.
type programProcess struct {
	shared *sys.Shared
	*control
	group *proc.Group
	child *child.Child
	drops map[string]uint64 // written before the child is done
}

// dropsLine is the last line that a program writes to standard output.
type dropsLine struct {
	Drops map[string]uint64 `json:"drops"`
}

func (r *run) startProgram(ctx context.Context, b *bed, baseline string, test Test, size int) (_ process, err error) {
	frame, err := buildFrame(b.tested, b.opposite, size)
	if err != nil {
		return nil, err
	}
	shared, err := sys.NewShared("libra-bench-engine", int(unsafe.Sizeof(control{})))
	if err != nil {
		return nil, err
	}
	p := &programProcess{shared: shared, control: controlIn(shared.Mem),
		group: proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit})}
	p.frameLen = uint32(copy(p.frame[:], frame))
	spec := child.Spec{Name: baseline, Start: b.testedHost().Start, Files: []*os.File{shared.File}, OnLine: p.parseLine}
	if baseline == Libxdp {
		spec.Command = r.xdp.Command(b.testedHost().Interface, string(test), strconv.Itoa(r.cfg.CPUs[0]))
	} else {
		spec.Command, spec.CPU = r.cfg.ChildCommand, new(r.cfg.CPUs[0])
		host := harness.HostConfigOf(b.net, 0)
		host.Spin = spin
		spec.Config = programConfig{HostConfig: host, Baseline: baseline, Test: test, Size: size}
	}
	if p.child, err = child.Launch(ctx, p.group, spec); err != nil {
		p.killProcess()
		return nil, err
	}
	return p, nil
}

func (p *programProcess) parseLine(line []byte) {
	var d dropsLine
	if json.Unmarshal(line, &d) == nil && d.Drops != nil {
		p.drops = d.Drops
	}
}

func (p *programProcess) enterPhase(phase uint32) error {
	p.phase.Store(phase)
	return nil
}

// countReceived fails with the program's own error if it has ended before it was asked to.
func (p *programProcess) countReceived() (uint64, error) {
	return p.control.received.Load(), p.child.Failed()
}

func (p *programProcess) finishTest(ctx context.Context) (n notes, err error) {
	if err := p.child.Stop(ctx); err != nil {
		return n, err
	}
	if err := p.group.Wait(); err != nil {
		return n, err
	}
	n = notes{cpu: p.at[1].Since(p.at[0]), drops: p.drops}
	n.roundTrip = append(n.roundTrip, p.roundTrip[:min(p.samples.Load(), maxSamples)]...) // the memory goes
	return n, p.shared.Close()
}

func (p *programProcess) processID() int { return p.child.Pid() }

// killProcess ends the process at once. Its errors are those of a process that is
// ended by force.
func (p *programProcess) killProcess() {
	p.phase.Store(phaseStop)
	_ = errors.Join(p.group.Stop(), p.shared.Close())
}

// What all programs have in common, so that they differ only in how they move
// frames.
const (
	batch      = 64  // frames a step sends or takes at most
	window     = 256 // frames that circulate in an echo; a veth ring holds as many
	umemFrames = 4096
	ringSize   = 2048
	// idle bounds a wait for frames, so that a program notices the end of the test.
	idle = 10 * time.Millisecond
	// reseedAfter is how many waits without a frame mean that what circulated in an
	// echo is lost, rather than late on a busy machine.
	reseedAfter = 10
	// spin is how long the AF_XDP programs look at their rings before they sleep.
	spin = 100 * time.Microsecond
	// rebind bounds the wait for a queue: the kernel takes up to half a second to
	// release one that the program before held,
	// where nothing else keeps the CPUs busy.
	rebind = 30 * time.Second
)

// program takes part in tests: it is a mover or a pusher. Its methods are called from one
// goroutine, which is locked to its thread. A step works on one batch; if there is nothing to do it
// waits, at most for the time idle.
type program interface {
	openProgram() error
	// countDrops returns counters of frames lost, by cause.
	countDrops() (map[string]uint64, error)
	closeProgram() error // also after open failed
}

// mover takes part in all tests but the push test.
type mover interface {
	program
	// transmitFrames sends up to n frames, at most batch, and returns how many.
	transmitFrames(n int) (int, error)
	// receiveFrames returns how many frames came.
	receiveFrames() (int, error)
	// bounceFrames receives frames, sends them back, and returns how many.
	bounceFrames() (int, error)
}

// pusher takes part in the push test.
type pusher interface {
	program
	// pushFrames is a step of the test: it returns how many frames were acknowledged.
	pushFrames() (int, error)
}

// programConfig configures the process of a program in Go.
type programConfig struct {
	harness.HostConfig
	Baseline string
	Test     Test
	Size     int

	control *control
	frame   []byte // frame to send; read-only
	jumbo   bool
}

// newProgram returns the program that c configures, nil if that is not written in Go.
func (c *programConfig) newProgram() program {
	switch {
	case c.Baseline == Libra && c.Test == Push, c.Baseline == Unprepared:
		return &pushWorker{cfg: c}
	case c.Baseline == Libra:
		return &libra{cfg: c}
	case c.Baseline == Bare:
		return &bare{libra: libra{cfg: c}, seq: wire.FirstSeq}
	case c.Baseline == Asavie:
		return &asavie{cfg: c}
	case c.Baseline == UDP:
		return &udp{cfg: c, fd: -1}
	}
	return nil
}

// RunChild is the process of a program in Go, in the namespace of the tested end.
// It is of no use by itself.
func RunChild(args []string) error {
	return child.Main(args, func(_ context.Context, c programConfig) error {
		if err := c.runProgram(); err != nil {
			return fmt.Errorf("engine: %s: %w", c.Baseline, err)
		}
		return nil
	})
}

// runProgram opens the program, announces it, and steps until the parent wants it to
// stop.
func (c *programConfig) runProgram() (err error) {
	runtime.LockOSThread()
	mem, err := sys.MapShared(controlFD, 0, int(unsafe.Sizeof(control{})), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	c.control = controlIn(mem)
	c.frame, c.jumbo = c.control.frame[:c.control.frameLen], c.Size > maxPlain
	p := c.newProgram()
	if p == nil {
		return errors.New("it is not written in Go")
	}
	defer func() { err = errors.Join(err, p.closeProgram()) }()
	if err := p.openProgram(); err != nil {
		return err
	}
	step, err := c.stepOf(p)
	if err != nil {
		return err
	}
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return err
	}
	return c.loopThroughPhases(p, step)
}

// stepOf returns what the test repeats. It returns how many frames it received.
func (c *programConfig) stepOf(p program) (func() (int, error), error) {
	if p, ok := p.(pusher); ok && c.Test == Push {
		return p.pushFrames, nil
	}
	m, ok := p.(mover)
	if !ok {
		return nil, fmt.Errorf("no part in the test %q", c.Test)
	}
	switch c.Test {
	case Transmit:
		return func() (int, error) {
			_, err := m.transmitFrames(batch)
			return 0, err
		}, nil
	case Receive:
		return m.receiveFrames, nil
	case Echo:
		return c.newEchoStep(m), nil
	case RequestResponse:
		return func() (int, error) { return c.requestOnce(m) }, nil
	}
	return nil, fmt.Errorf("no test %q", c.Test)
}

// newEchoStep returns a step of the echo test. It sends the frames that are to circulate
// when nothing does.
func (c *programConfig) newEchoStep(m mover) func() (int, error) {
	silent := reseedAfter
	return func() (int, error) {
		if silent == reseedAfter {
			silent = 0
			for left := window; left > 0; {
				sent, err := m.transmitFrames(min(left, batch))
				if err != nil {
					return 0, err
				}
				left -= sent
			}
		}
		n, err := m.bounceFrames()
		silent++
		if n > 0 {
			silent = 0
		}
		return n, err
	}
}

func (c *programConfig) requestOnce(m mover) (int, error) {
	start := time.Now()
	if _, err := m.transmitFrames(1); err != nil {
		return 0, err
	}
	n, err := m.receiveFrames()
	if n > 0 && c.control.phase.Load() == phaseMeasure {
		c.control.recordTrip(int64(time.Since(start)))
	}
	return n, err
}

// loopThroughPhases steps through the phases. At the limits of the measurement it notes the CPU
// time and the drops, and at the end it reports the drops in between.
func (c *programConfig) loopThroughPhases(p program, step func() (int, error)) error {
	var before map[string]uint64
	for phase := phaseWarmUp; ; {
		now := c.control.phase.Load()
		if now != phase {
			var err error
			if c.control.at[now-phaseMeasure], err = sys.OwnUsage(); err != nil {
				return err
			}
			drops, err := p.countDrops()
			if err != nil {
				return err
			}
			if now == phaseStop {
				return json.NewEncoder(os.Stdout).Encode(dropsLine{experiment.Difference(before, drops)})
			}
			before, phase = drops, now
		}
		n, err := step()
		if n > 0 {
			c.control.received.Add(uint64(n))
		}
		if err != nil {
			return err
		}
	}
}
