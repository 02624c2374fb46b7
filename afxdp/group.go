// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/netwatch"
)

// GroupConfig describes the sockets of an interface. Match is required, unless
// Socket.RxFrames is negative.
type GroupConfig struct {
	// Match selects the packets that the sockets receive; all others pass to the kernel's stack.
	// With a negative Socket.RxFrames the sockets only send: then there is no Match, and no program
	// is attached.
	Match Match
	// Queues are the queues to serve. Default: all receive queues of the interface that are in use;
	// for sockets that only send, all transmit queues. Packets of other queues pass to the kernel's
	// stack.
	Queues []int
	// Frames is the number of frames of each queue, half of which wait for packets. Default 4096,
	// which are 8 MB.
	Frames int

	// Attach, Socket and UMEM have the other settings. OpenAll fills in fields that follow from
	// those above and from the interface, which must be zero: Attach.Interface, Match, Program and
	// Queues, and Others, for which a Group has no sockets; Socket.Interface, Queue, XSKMap and
	// File; UMEM.Frames. The default of UMEM.FrameSize is the smallest size that fits packets of
	// the interface's MTU. Socket.MultiBuffer also sets Attach.MultiBuffer.
	Attach AttachConfig
	Socket Config
	UMEM   UMEMConfig

	// Log gets what happens to the interface during Run, such as a new MTU or Ethernet address, and
	// the remedy where packets are lost by it. Default: [slog.Default].
	Log *slog.Logger
}

// A Group is a socket on each of several queues of one interface, with one UMEM, a pool for each
// socket, and the XDP program. Its methods are safe for concurrent use.
type Group struct {
	umem    *UMEM
	sockets []*Socket
	home    *namespace // namespace of the interface, held until Run or Close is over
	ifname  string
	log     *slog.Logger
	needs   netwatch.Needs

	mu      sync.Mutex  // guards the fields below
	program *Attachment // nil if the sockets only send
	ran     bool
	running bool
	closed  bool // program and sockets
	freeing bool // Run frees the memory
}

// OpenAll opens a socket on every queue of an interface, or on those of cfg.Queues, attaches the
// program that redirects packets to them, and allocates their memory. If it fails the interface is
// unchanged.
func OpenAll(ifname string, cfg GroupConfig) (g *Group, err error) {
	ifi, err := interfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	if err := cfg.setDefaults(ifi); err != nil {
		return nil, err
	}
	g = &Group{ifname: ifi.Name, log: cfg.Log, needs: netwatch.Needs{MinMTU: ifi.MTU}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
			g = nil
		}
	}()
	if g.umem, err = NewUMEM(cfg.UMEM); err != nil {
		return g, err
	}
	var sockets *ebpf.Map
	if cfg.Socket.RxFrames >= 0 {
		if g.program, err = Attach(cfg.Attach); err != nil {
			return g, err
		}
		sockets = g.program.XSKMap()
	}
	for _, q := range cfg.Queues {
		pool, err := g.umem.NewPool(cfg.Frames)
		if err != nil {
			return g, err
		}
		sock := cfg.Socket
		sock.Queue, sock.XSKMap = q, sockets
		s, err := Open(pool, sock)
		if err != nil {
			return g, err
		}
		g.sockets = append(g.sockets, s)
	}
	g.home = g.umem.enterNamespace() // Run follows the interface beside sockets that close
	if cfg.Socket.RxFrames >= 0 && !cfg.Socket.MultiBuffer && cfg.Socket.MaxPacket == 0 {
		g.needs.MaxMTU = max(ifi.MTU, g.umem.RxRoom()-minPacket-4)
	}
	return g, nil
}

func (g *Group) logger() *slog.Logger {
	if g.log == nil {
		return slog.Default()
	}
	return g.log
}

// setDefaults completes a configuration, and refuses one with fields that must be zero.
func (c *GroupConfig) setDefaults(ifi *net.Interface) error {
	for name, given := range map[string]bool{
		"Attach.Interface": c.Attach.Interface != "", "Attach.Match": c.Attach.Match.op != matchInvalid ||
			c.Attach.Match.err != nil,
		"Attach.Program": c.Attach.Program != nil, "Attach.Queues": c.Attach.Queues != 0,
		"Socket.Interface": c.Socket.Interface != "", "Socket.Queue": c.Socket.Queue != 0,
		"Socket.XSKMap": c.Socket.XSKMap != nil, "Socket.File": c.Socket.File != nil, "UMEM.Frames": c.UMEM.Frames != 0,
	} {
		if given {
			return fmt.Errorf("%w: GroupConfig.%s is filled in by OpenAll", ErrConfig, name)
		}
	}
	if len(c.Attach.Others) > 0 {
		return fmt.Errorf("%w: GroupConfig.Attach.Others: a Group has no sockets for them: use Attach and Open", ErrConfig)
	}
	if c.Socket.RxFrames < 0 && (c.Match.op != matchInvalid || c.Match.err != nil) {
		return fmt.Errorf("%w: GroupConfig.Match with Socket.RxFrames %d: sockets that only send match nothing", ErrConfig,
			c.Socket.RxFrames)
	}
	send, direction := c.Socket.RxFrames < 0, "receive"
	if send {
		direction = "transmit"
	}
	queues, err := queuesInUse(ifi, send)
	if err != nil {
		return err
	}
	if c.Queues == nil {
		for q := range queues {
			c.Queues = append(c.Queues, q)
		}
	}
	c.Queues = slices.Sorted(slices.Values(c.Queues))
	if n := len(c.Queues); n == 0 || n > len(slices.Compact(slices.Clone(c.Queues))) {
		return fmt.Errorf("%w: GroupConfig.Queues are %v: none, or one twice", ErrConfig, c.Queues)
	}
	if last := c.Queues[len(c.Queues)-1]; c.Queues[0] < 0 || last >= queues {
		return fmt.Errorf("%w: GroupConfig.Queues are %v, %s has %s queues 0 to %d (see ethtool -l %s)", ErrNoQueue,
			c.Queues, ifi.Name, direction, queues-1, ifi.Name)
	}
	c.Frames = cmp.Or(c.Frames, 4096)
	if most := 1 << 24 / len(c.Queues); c.Frames < 1 || c.Frames > most {
		return fmt.Errorf("%w: GroupConfig.Frames %d is not in [1, %d] for each of %d queues", ErrConfig, c.Frames, most,
			len(c.Queues))
	}
	c.UMEM.Frames = c.Frames * len(c.Queues)
	if c.UMEM.FrameSize == 0 && !c.Socket.MultiBuffer {
		need := cmp.Or(c.Socket.MaxPacket, ifi.MTU+minPacket+4) + kernelHeadroom + c.UMEM.Headroom
		for c.UMEM.FrameSize = 2048; c.UMEM.FrameSize < min(need, os.Getpagesize()); c.UMEM.FrameSize *= 2 {
		}
	}
	c.Attach.Interface, c.Attach.Match, c.Attach.Queues = ifi.Name, c.Match, queues
	c.Attach.MultiBuffer = c.Attach.MultiBuffer || c.Socket.MultiBuffer
	c.Socket.Interface = ifi.Name
	return nil
}

// queuesInUse returns how many receive queues of an interface are in use, or transmit queues for
// sockets that only send; if its driver does not report that, the number with which it was created.
func queuesInUse(ifi *net.Interface, send bool) (int, error) {
	choose := func(rx, tx int) int {
		if send {
			return tx
		}
		return rx
	}
	rx, tx, err := QueueCounts(ifi.Name)
	if n := choose(rx, tx); err == nil && n > 0 {
		return n, nil
	}
	l, err := linkByIndex(ifi.Index)
	if err != nil {
		return 0, fmt.Errorf("afxdp: queues of %s: %w", ifi.Name, err)
	}
	return max(1, choose(l.Attrs().NumRxQueues, l.Attrs().NumTxQueues)), nil
}

// Sockets returns the sockets, in the order of their queues. Each belongs to the goroutine of Run
// for it.
func (g *Group) Sockets() []*Socket { return slices.Clone(g.sockets) }

// Snapshot adds up the counters of all sockets, as [Socket.Snapshot] reads them.
func (g *Group) Snapshot() (Stats, error) {
	var sum Stats
	for _, s := range g.sockets {
		st, err := s.Snapshot()
		if err != nil {
			return sum, err
		}
		sum.addStats(&st)
	}
	return sum, nil
}

// Run calls loop once for each socket, in its own goroutine that is locked to its thread, and waits
// for all to return. [Serve] makes a loop from a function that handles packets.
//
// When ctx is done, Run closes the sockets: their methods, including a Poll that sleeps, return
// net.ErrClosed. Run then returns nil. It also returns nil after Close, and when all loops return
// nil. The socket of a loop that returns nil is closed at once: while others continue, the kernel
// gets the packets of its queue.
//
// A loop that returns an ErrLinkDown or ErrInterfaceGone, or an ErrNoProgram if the Group has a
// program, is called again when its interface is back, with the program attached
// ([Socket.Recover]); the frames that it held are lost to the pool unless it has returned them. A
// program that another process detached is attached again within a second; if another program is
// there then, Run ends with ErrProgramAttached. If the process has no descriptors left for this,
// Run waits for them. With any other error Run closes all sockets and returns it; but the
// net.ErrClosed of a socket that was closed by its own Close ends only that socket's loop. A Group
// runs once.
func (g *Group) Run(ctx context.Context, loop func(*Socket) error) error {
	g.mu.Lock()
	again := g.ran
	if !again {
		g.ran, g.running = true, true
	}
	g.mu.Unlock()
	if again {
		return fmt.Errorf("%w: a Group runs once; open another one", ErrInUse)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops, closer sync.WaitGroup
	var closing error
	closer.Go(func() {
		kept := g.keepProgram(ctx)
		closing = errors.Join(kept, g.closeSockets())
	})
	errs := make([]error, len(g.sockets))
	for i, s := range g.sockets {
		loops.Go(func() {
			if errs[i] = g.runSocket(ctx, s, loop); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	loops.Wait()
	cancel(nil)
	closer.Wait()
	return errors.Join(append(errs, closing, g.ranOut())...)
}

// ranOut frees the memory after a Close during which goroutines still used it.
func (g *Group) ranOut() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.leaveHome()
	if g.running = false; g.freeing {
		err = errors.Join(err, g.umem.Close())
	}
	return err
}

// leaveHome forgets the interface's namespace. The caller holds g.mu, and nothing follows the
// interface any more.
func (g *Group) leaveHome() error {
	home := g.home
	g.home = nil
	g.umem.mu.Lock()
	defer g.umem.mu.Unlock()
	return g.umem.leaveNamespace(home)
}

// runSocket is one goroutine of Run.
func (g *Group) runSocket(ctx context.Context, s *Socket, loop func(*Socket) error) error {
	unpin, err := PinThread(-1)
	if err != nil {
		return err
	}
	for err == nil {
		err = loop(s)
		// Without a program, drivers send nothing in zero-copy mode. The Group's program is
		// attached again.
		noProgram := errors.Is(err, ErrNoProgram) && g.program != nil
		if !errors.Is(err, ErrLinkDown) && !errors.Is(err, ErrInterfaceGone) && !noProgram {
			break
		}
		err = g.recover(ctx, s)
	}
	if s.closing() && errors.Is(err, net.ErrClosed) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // it was meant to end
	}
	if err == nil {
		err = s.Close() // the kernel gets the packets of its queue from now on
	}
	return errors.Join(err, unpin())
}

// recover waits until a socket's interface works again, with the program attached.
func (g *Group) recover(ctx context.Context, s *Socket) error {
	for {
		err := s.Recover(ctx)
		if err != nil && !lacksDescriptors(err) {
			return err
		}
		if err == nil {
			err = g.reattach(s.info.Load().Ifindex)
		}
		if !errors.Is(err, ErrInterfaceGone) && !errors.Is(err, ErrLinkDown) && !lacksDescriptors(err) {
			return err
		}
		if err := s.pauseBefore(ctx, err); err != nil {
			return err
		}
	}
}

// lacksDescriptors reports whether an error is a lack of descriptors, which other parts of the
// process may soon close.
func lacksDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// closeSockets detaches the program first, so that the kernel gets packets that arrive meanwhile.
func (g *Group) closeSockets() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	var errs []error
	if g.program != nil {
		errs = append(errs, g.program.detachLink())
	}
	for _, s := range g.sockets {
		errs = append(errs, s.Close())
	}
	if g.program != nil { // last: a socket removes itself from its map, even one that its user is closing
		errs = append(errs, g.program.Close())
	}
	return errors.Join(errs...)
}

// Close detaches the program from the interface, closes the sockets, which ends a Run, and frees
// the memory, or leaves that to a Run that has not returned. Close may be called more than once.
func (g *Group) Close() error {
	err := g.closeSockets()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		g.freeing = true
		return err
	}
	if g.umem != nil {
		err = errors.Join(err, g.leaveHome(), g.umem.Close())
	}
	return err
}
