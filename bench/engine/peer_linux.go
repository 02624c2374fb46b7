package engine

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/proc"
)

// What all peers have in common, so that they differ only in how they move frames.
const (
	batch      = 64  // frames a step sends or takes at most
	window     = 256 // frames that circulate in an echo; a veth ring holds as many
	umemFrames = 4096
	ringSize   = 2048
	// idle bounds a wait for frames, so that a peer notices the end of the test.
	idle = 10 * time.Millisecond
	// reseedAfter is how many waits without a frame say that what circulated in an
	// echo is lost, rather than late on a busy machine.
	reseedAfter = 10
	// spin is how long the AF_XDP peers look at their rings before they sleep.
	spin = 100 * time.Microsecond
	// rebind bounds the wait for a queue: the kernel takes up to half a second to
	// release one that the peer before held.
	rebind = 3 * time.Second
)

// peer takes part in tests: it is a mover or a pusher. Its methods are called from one
// goroutine, which is locked to its thread. A step works on one batch; if there is nothing to do it
// waits, at most for the time idle.
type peer interface {
	// drops returns counters of frames lost, by cause.
	drops() (map[string]uint64, error)
	close() error
}

// mover takes part in all tests but the push test.
type mover interface {
	peer
	// send is a step of the transmit test.
	send() error
	// receive is a step of the receive test: it returns how many frames came.
	receive() (int, error)
	// seed sends n frames that begin to circulate.
	seed(n int) error
	// bounce is a step of the echo test: it receives frames and sends them back.
	bounce() (int, error)
	// request sends a frame and waits for its return; false if none came.
	request() (bool, error)
}

// pusher takes part in the push test.
type pusher interface {
	peer
	// push is a step of the test: it returns how many frames were acknowledged.
	push() (int, error)
}

// errNoTest says that a peer does not take part in a test.
var errNoTest = errors.New("engine: no such test for this peer")

// peerConfig is what a peer's process is told.
type peerConfig struct {
	name    string
	test    Test
	size    int
	iface   string
	cpu     int
	local   netip.Addr // of the tested end
	remote  netip.Addr // of the opposite end
	frame   []byte     // to send; read-only
	jumbo   bool
	control *control
}

func (c *peerConfig) args() []string {
	return []string{
		"-peer", c.name, "-test", string(c.test), "-size", strconv.Itoa(c.size), "-interface", c.iface,
		"-cpu", strconv.Itoa(c.cpu), "-local", c.local.String(), "-remote", c.remote.String(),
	}
}

// openers make the peers that are written in Go.
var openers = map[string]func(*peerConfig) (peer, error){
	PeerLibra:    openLibra,
	PeerBare:     openBare,
	PeerAsavie:   openAsavie,
	PeerUDP:      openUDP,
	PeerUDPSpin:  openUDPSpin,
	PeerUDPGSO:   openUDPGSO,
	PeerAFPacket: openAFPacket,
}

// RunPeer is the process of a peer: Run starts it with the arguments after
// Config.PeerCommand, in the namespace of the tested end. It is of no use by itself.
func RunPeer(args []string) error {
	cfg, err := parsePeer(args)
	if err != nil {
		return fmt.Errorf("engine: peer: %w", err)
	}
	if err := cfg.run(); err != nil {
		return fmt.Errorf("engine: peer %s: %w", cfg.name, err)
	}
	return nil
}

func parsePeer(args []string) (*peerConfig, error) {
	var cfg peerConfig
	flags := flag.NewFlagSet("peer", flag.ContinueOnError)
	flags.StringVar(&cfg.name, "peer", "", "name of the peer")
	flags.StringVar((*string)(&cfg.test), "test", "", "test to take part in")
	flags.IntVar(&cfg.size, "size", 0, "frame size in bytes")
	flags.StringVar(&cfg.iface, "interface", "", "interface of the tested end")
	flags.IntVar(&cfg.cpu, "cpu", 0, "CPU to run on")
	flags.TextVar(&cfg.local, "local", netip.Addr{}, "address of the tested end")
	flags.TextVar(&cfg.remote, "remote", netip.Addr{}, "address of the opposite end")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if openers[cfg.name] == nil {
		return nil, fmt.Errorf("no peer %q is written in Go", cfg.name)
	}
	cfg.jumbo = cfg.size > maxPlain
	var err error
	if cfg.control, err = mapControl(controlFD); err != nil {
		return nil, fmt.Errorf("%w; this command is for the harness to call", err)
	}
	cfg.frame = cfg.control.template()
	return &cfg, nil
}

// ifindex returns the index of the tested end's interface.
func (c *peerConfig) ifindex() (int, error) {
	ifi, err := net.InterfaceByName(c.iface)
	if err != nil {
		return 0, err
	}
	return ifi.Index, nil
}

// run opens the peer, announces it, and steps until the harness says stop.
func (c *peerConfig) run() error {
	runtime.LockOSThread()
	if err := pinProcess(c.cpu); err != nil {
		return err
	}
	p, err := openers[c.name](c)
	if err != nil {
		return err
	}
	step, err := c.step(p)
	if err != nil {
		return errors.Join(err, p.close())
	}
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return errors.Join(err, p.close())
	}
	err = c.loop(p, step)
	return errors.Join(err, p.close())
}

// step returns what the test repeats. It counts what it received itself.
func (c *peerConfig) step(p peer) (func() error, error) {
	count := func(take func() (int, error)) func() error {
		return func() error {
			n, err := take()
			c.control.received.Add(uint64(n))
			return err
		}
	}
	if p, ok := p.(pusher); ok && c.test == Push {
		return count(p.push), nil
	}
	m, ok := p.(mover)
	if !ok {
		return nil, fmt.Errorf("%w: %q", errNoTest, c.test)
	}
	switch c.test {
	case Transmit:
		return m.send, nil
	case Receive:
		return count(m.receive), nil
	case Echo:
		silent := reseedAfter // nothing circulates
		return count(func() (int, error) {
			if silent == reseedAfter {
				silent = 0
				c.control.reseeded.Add(window)
				if err := m.seed(window); err != nil {
					return 0, err
				}
			}
			n, err := m.bounce()
			silent++
			if n > 0 {
				silent = 0
			}
			return n, err
		}), nil
	case RequestResponse:
		return count(func() (int, error) {
			start := time.Now()
			ok, err := m.request()
			if !ok {
				return 0, err
			}
			if c.control.phase.Load() == phaseMeasure {
				c.control.record(int64(time.Since(start)))
			}
			return 1, err
		}), nil
	}
	return nil, fmt.Errorf("%w: %q", errNoTest, c.test)
}

// loop steps through the phases. At the limits of the measurement it notes the CPU
// time and the drops, and at the end it reports the drops in between.
func (c *peerConfig) loop(p peer, step func() error) error {
	var before map[string]uint64
	for phase := phaseWarmUp; ; {
		now := c.control.phase.Load()
		if now != phase {
			limit := 0
			if now == phaseStop {
				limit = 1
			}
			var err error
			if c.control.at[limit], err = ownUsage(); err != nil {
				return err
			}
			drops, err := p.drops()
			if err != nil {
				return err
			}
			if now == phaseStop {
				return reportDrops(os.Stdout, difference(before, drops))
			}
			before, phase = drops, now
		}
		if err := step(); err != nil {
			return err
		}
	}
}

// pinProcess moves all threads of the process to a CPU. Threads that the runtime
// starts later inherit it.
func pinProcess(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to CPU %d: %w", cpu, os.NewSyscallError("sched_setaffinity", err))
		}
	}
	return nil
}
