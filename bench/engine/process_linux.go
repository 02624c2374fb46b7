package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/sys"
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
	reseeded atomic.Uint64 // echo: frames sent because nothing came back
	samples  atomic.Uint64 // round-trip times below
	_        [40]byte
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

// openControl maps the memory in a tested program.
func openControl() (*control, error) {
	mem, err := sys.MapShared(controlFD, 0, int(unsafe.Sizeof(control{})), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, err
	}
	return controlIn(mem), nil
}

func (c *control) template() []byte { return c.frame[:c.frameLen] }

// record stores a round-trip time; those beyond the room for them are not kept.
func (c *control) record(nanos int64) {
	if n := c.samples.Load(); n < maxSamples {
		c.roundTrip[n] = uint32(min(nanos, int64(^uint32(0))))
		c.samples.Store(n + 1)
	}
}

func (c *control) recorded() []uint32 { return c.roundTrip[:min(c.samples.Load(), maxSamples)] }

// programProcess is a process that follows the control memory.
type programProcess struct {
	shared *sys.Shared
	*control
	group *proc.Group
	child *child.Child

	mu    sync.Mutex
	drops map[string]uint64
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
	p := &programProcess{shared: shared, control: controlIn(shared.Mem), group: proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit})}
	p.frameLen = uint32(copy(p.frame[:], frame))
	spec := child.Spec{Name: baseline, Start: b.host().Start, Files: []*os.File{shared.File}, OnLine: p.line}
	if baseline == Libxdp {
		spec.Command = r.xdp.Command(b.host().Interface, string(test), strconv.Itoa(r.cfg.CPUs[0]))
	} else {
		spec.Command, spec.CPU = r.cfg.ChildCommand, new(r.cfg.CPUs[0])
		spec.Config = programConfig{
			Baseline: baseline, Test: test, Size: size, Interface: b.host().Interface, Local: b.tested.IP, Remote: b.opposite.IP,
		}
	}
	if p.child, err = child.Start(p.group, spec); err == nil {
		err = p.child.Ready(ctx)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// line takes the drops from the program's output.
func (p *programProcess) line(line []byte) {
	var d dropsLine
	if json.Unmarshal(line, &d) == nil && d.Drops != nil {
		p.mu.Lock()
		p.drops = d.Drops
		p.mu.Unlock()
	}
}

func (p *programProcess) enter(phase uint32) error {
	p.phase.Store(phase)
	return nil
}

func (p *programProcess) received() (uint64, error) { return p.control.received.Load(), nil }

func (p *programProcess) finish(ctx context.Context) (n notes, err error) {
	if err := p.child.Stop(ctx); err != nil {
		return n, err
	}
	if err := p.group.Wait(); err != nil {
		return n, err
	}
	n.cpu = p.at[1].Since(p.at[0])
	n.roundTrip = append(n.roundTrip, p.recorded()...)
	p.mu.Lock()
	n.drops = p.drops
	p.mu.Unlock()
	return n, p.shared.Close()
}

// kill ends the process at once. Its errors are those of a process that is
// ended by force.
func (p *programProcess) kill() {
	p.phase.Store(phaseStop)
	_ = errors.Join(p.group.Stop(), p.shared.Close())
}
