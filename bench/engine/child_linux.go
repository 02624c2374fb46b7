package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/sys"
	"github.com/libra-ina/libra/wire"
)

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
	// release one that the program before held.
	rebind = 3 * time.Second
)

// program takes part in tests: it is a mover or a pusher. Its methods are called from one
// goroutine, which is locked to its thread. A step works on one batch; if there is nothing to do it
// waits, at most for the time idle.
type program interface {
	open() error
	// drops returns counters of frames lost, by cause.
	drops() (map[string]uint64, error)
	close() error // also after open failed
}

// mover takes part in all tests but the push test.
type mover interface {
	program
	// transmit sends up to n frames, at most batch, and returns how many.
	transmit(n int) (int, error)
	// receive returns how many frames came.
	receive() (int, error)
	// bounce receives frames, sends them back, and returns how many.
	bounce() (int, error)
}

// pusher takes part in the push test.
type pusher interface {
	program
	// push is a step of the test: it returns how many frames were acknowledged.
	push() (int, error)
}

// programConfig is what the process of a program in Go is told.
type programConfig struct {
	Baseline  string
	Test      Test
	Size      int
	Interface string
	Local     netip.Addr // of the tested end
	Remote    netip.Addr // of the opposite end

	control *control
	frame   []byte // to send; read-only
	jumbo   bool
}

// program returns the program that is told c, nil if that is not written in Go.
func (c *programConfig) program() program {
	switch {
	case c.Baseline == Libra && c.Test == Push:
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
		if err := c.run(); err != nil {
			return fmt.Errorf("engine: %s: %w", c.Baseline, err)
		}
		return nil
	})
}

func (c *programConfig) ifindex() (int, error) {
	ifi, err := net.InterfaceByName(c.Interface)
	if err != nil {
		return 0, err
	}
	return ifi.Index, nil
}

// run opens the program, announces it, and steps until the parent wants it to
// stop.
func (c *programConfig) run() (err error) {
	runtime.LockOSThread()
	if c.control, err = openControl(); err != nil {
		return err
	}
	c.frame, c.jumbo = c.control.template(), c.Size > maxPlain
	p := c.program()
	if p == nil {
		return errors.New("it is not written in Go")
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.open(); err != nil {
		return err
	}
	step, err := c.step(p)
	if err != nil {
		return err
	}
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return err
	}
	return c.loop(p, step)
}

// step returns what the test repeats. It counts what it received itself.
func (c *programConfig) step(p program) (func() error, error) {
	count := func(take func() (int, error)) func() error {
		return func() error {
			n, err := take()
			c.control.received.Add(uint64(n))
			return err
		}
	}
	if p, ok := p.(pusher); ok && c.Test == Push {
		return count(p.push), nil
	}
	m, ok := p.(mover)
	if !ok {
		return nil, fmt.Errorf("no part in the test %q", c.Test)
	}
	switch c.Test {
	case Transmit:
		return func() error {
			_, err := m.transmit(batch)
			return err
		}, nil
	case Receive:
		return count(m.receive), nil
	case Echo:
		return count(c.echo(m)), nil
	case RequestResponse:
		return count(func() (int, error) { return c.request(m) }), nil
	}
	return nil, fmt.Errorf("no test %q", c.Test)
}

// echo returns a step of the echo test. It sends the frames that are to circulate
// when nothing does.
func (c *programConfig) echo(m mover) func() (int, error) {
	silent := reseedAfter
	return func() (int, error) {
		if silent == reseedAfter {
			silent = 0
			c.control.reseeded.Add(window)
			for left := window; left > 0; {
				sent, err := m.transmit(min(left, batch))
				if err != nil {
					return 0, err
				}
				left -= sent
			}
		}
		n, err := m.bounce()
		silent++
		if n > 0 {
			silent = 0
		}
		return n, err
	}
}

// request sends a frame, waits for its return and records how long that took.
func (c *programConfig) request(m mover) (int, error) {
	start := time.Now()
	if _, err := m.transmit(1); err != nil {
		return 0, err
	}
	n, err := m.receive()
	if n > 0 && c.control.phase.Load() == phaseMeasure {
		c.control.record(int64(time.Since(start)))
	}
	return n, err
}

// loop steps through the phases. At the limits of the measurement it notes the CPU
// time and the drops, and at the end it reports the drops in between.
func (c *programConfig) loop(p program, step func() error) error {
	var before map[string]uint64
	for phase := phaseWarmUp; ; {
		now := c.control.phase.Load()
		if now != phase {
			limit := 0
			if now == phaseStop {
				limit = 1
			}
			var err error
			if c.control.at[limit], err = sys.OwnUsage(); err != nil {
				return err
			}
			drops, err := p.drops()
			if err != nil {
				return err
			}
			if now == phaseStop {
				return json.NewEncoder(os.Stdout).Encode(dropsLine{harness.Difference(before, drops)})
			}
			before, phase = drops, now
		}
		if err := step(); err != nil {
			return err
		}
	}
}
