// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// Socket serves one queue of one interface.
//
// Its methods belong to one goroutine, or to two: one receives (Receive, Release, Fill, Refill,
// Poll for EventRx) and has the socket's Pool, the other one sends (Send, Kick, Completed,
// InFlight, Backlog, Poll for EventCompletion or Wake alone), with frames of another Pool of the
// UMEM or frames that it got from the first. Both should be locked to their threads. Stats, Rings,
// Recover, Reopen, and Poll for both events need the whole socket. Close, Wake, Info, FD and
// Snapshot may be called from any goroutine.
type Socket struct {
	cfg   Config
	umem  *UMEM
	pool  *Pool
	calls kernelCalls

	state       []frameState // the UMEM's, here to save a load
	filling     frameState   // of frames in our fill ring
	flying      frameState   // of frames in our TX or completion ring
	maxInFlight uint32
	mates       *sharedQueue // nil unless others may be bound to the same queue
	spare       []Frame      // surplus frames that were filling when it was reopened

	id         uint16        // 0 after its release, see UMEM.unregister
	closed     chan struct{} // closed when Close has finished
	home       *namespace    // namespace of the interface
	ifname     string        // name of its interface at the last Open or Reopen
	queue      queueID       // queue to which the kernel's socket is, or was, bound
	direct     bool          // others may have access to the frames after our fd is closed
	hook       *hook         // hook with the program that the driver needs to send
	mode       BindMode      // requested at the last bind; BindAuto may have become BindCopy
	left       *departure    // nil if only we have access to our frames
	fd         int
	opened     uint32 // how many descriptors the socket has had
	mappings   [][]byte
	bound      bool         // guarded by umem.mu; so is fd while siblings may bind to it
	shared     bool         // bound to the UMEM of a sibling
	former     *sharedQueue // queue that it left to others, with frames in flight
	share      int          // its frames in the fill ring of the shared queue, if divided fairly
	continues  bool         // it is back there, and they complete there
	registered bool         // the UMEM is registered with fd itself
	info       atomic.Pointer[Info]
	clock      atomic.Pointer[deviceClock] // nil if SendAt sleeps

	past xdpStatistics // of kernel sockets that are closed; guarded by umem.mu

	_ cpu.CacheLinePad
	// Used by the goroutine that receives.
	in     half
	fill   addrRing
	rx     descRing
	rxSkip bool // the packet being received had a bad fragment
	// unfilled is the number of received frames minus the number of filled ones since the socket
	// was opened, initial ones excluded: Serve fills that many. Negative if more were filled.
	unfilled int

	_ cpu.CacheLinePad
	// Used by the goroutine that sends.
	out        half
	completion addrRing
	tx         descRing
	reclaimed  []Frame // frames in flight when the socket was reopened
	landed     []Frame // completed frames of a shared queue, see sharedQueue
	inFlight   uint32
	holdAbove  uint32 // see holding
	holdKicks  uint32
}

// Info is the actual result of Open, as opposed to the request.
type Info struct {
	Interface  string
	Ifindex    int
	Queue      int
	ZeroCopy   bool // read back with XDP_OPTIONS
	SharedUMEM bool // bound to the UMEM of a sibling
	TxBudget   int  // frames for each system call in copy mode
	BusyPoll   bool
	MTU        int
	// NAPI is the number of the context in which the driver receives for the queue, as used by busy
	// polling and "ss". 0: the kernel (before 6.8) or the driver does not report it.
	NAPI   int
	Device Device // the driver's features
	// LaunchTime is whether SendAt leaves the timing to the device. It needs UMEMConfig.TxMetadata,
	// zero-copy mode, Device.TxLaunchTime and access to /dev/ptpN.
	LaunchTime bool
}

// Open creates a socket on the pool's UMEM and binds it. Sockets after the
// first on one UMEM share the first one's registration; each has its own rings.
// The calling thread's network namespace must be the interface's.
func Open(pool *Pool, cfg Config) (*Socket, error) {
	if err := cfg.setDefaults(pool); err != nil {
		return nil, err
	}
	s := &Socket{
		in: half{gate: newGate()}, out: half{gate: newGate()}, cfg: cfg, umem: pool.umem, pool: pool,
		state: pool.umem.state, fd: -1,
		maxInFlight: uint32(cfg.CompletionRing), closed: make(chan struct{}),
	}
	s.disconnect()
	if err := s.openWakers(); err != nil {
		return nil, err
	}
	if err := s.umem.register(s); err != nil {
		return nil, errors.Join(err, s.closeWakers())
	}
	s.setStates()
	s.home = s.umem.enterNamespace()
	if err := s.connect(); err != nil {
		err = errors.Join(err, s.takeBack())
		return nil, errors.Join(err, s.umem.unregister(s), s.closeWakers())
	}
	s.in.polls.initSockets(s)
	s.out.polls.initSockets(s)
	return s, nil
}

// openWakers opens the wakers of both goroutines.
func (s *Socket) openWakers() error {
	if err := s.in.wake.Open(); err != nil {
		return err
	}
	if err := s.out.wake.Open(); err != nil {
		return errors.Join(err, s.in.wake.Close())
	}
	return nil
}

func (s *Socket) closeWakers() error { return errors.Join(s.in.wake.Close(), s.out.wake.Close()) }

// setStates sets the states of frames lent through the socket, with its number.
func (s *Socket) setStates() {
	s.filling, s.flying = statesOf(s.id)
}

// statesOf returns the states of frames that are lent under a number.
func statesOf(number uint16) (filling, flying frameState) {
	n := frameState(number) << stateBits
	return n | stateFilling, n | stateInFlight
}

// Info returns the result of the last Open or Reopen. It may be called from any goroutine.
func (s *Socket) Info() Info { return *s.info.Load() }

// Pool returns the pool of the socket's frames.
func (s *Socket) Pool() *Pool { return s.pool }

// UMEM returns the socket's memory.
func (s *Socket) UMEM() *UMEM { return s.umem }

// FD returns the socket's descriptor, for example to put it in another program's XSKMAP: -1 after
// Close. It still belongs to the Socket; Reopen changes it.
func (s *Socket) FD() int {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	return s.fd
}

// Close wakes blocked Polls, waits until the goroutines that are inside the socket have left,
// unmaps the rings and closes the kernel's socket. Methods return net.ErrClosed from then on. It
// may be called from any goroutine and more than once; every call returns when all of this is done.
//
// The kernel releases the queue itself some time later, typically within half a second. In copy
// mode it writes into no frame after Close returns. In zero-copy mode the device may continue until
// the queue is released. Frames that the kernel held stay lent until Reclaim takes them back.
func (s *Socket) Close() error {
	if !s.closeGates() {
		<-s.closed
		return nil
	}
	err := errors.Join(s.removeFromMap(), s.detach(), s.closeWakers(), s.umem.unregister(s))
	close(s.closed)
	return err
}

// Reclaim takes back the frames that the kernel held when the socket was closed. Frames in the
// state "filling" return to the pool; those in flight become yours and are returned: they may or
// may not have been sent. It belongs to the goroutine that owns the pool; before Close it returns
// ErrInUse. While Close runs in another goroutine it waits.
//
// After zero-copy mode, and for a passed socket, it also waits until the device has released the
// frames, at most for Config.BindTimeout. The device has released them when a socket of this
// process was bound to the queue after Close, or when the queue no longer exists. Otherwise Reclaim
// briefly binds its own socket, which needs CAP_NET_RAW. After the timeout it returns ErrStillLent,
// all frames stay lent, and it may be called again. If others share the queue, it waits for the
// completions of those in flight instead, see Config.ShareQueue.
func (s *Socket) Reclaim() ([]Frame, error) {
	if !s.closing() {
		return nil, fmt.Errorf("%w: Reclaim before Close", ErrInUse)
	}
	<-s.closed
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.BindTimeout)
	defer cancel()
	if err := s.awaitLanding(ctx); err != nil {
		return nil, err
	}
	if err := s.takeBack(); err != nil {
		return nil, err
	}
	flying := s.lent(nil, s.flying)
	for _, f := range flying {
		s.state[f] = stateYours
	}
	s.inFlight, s.reclaimed = 0, nil
	return flying, s.umem.releaseID(s)
}

// lent appends to dst the frames whose state byte is state, which names this socket; none once the
// socket released its number.
//
// Other goroutines may write the state bytes of their own frames at the same time. The race
// detector must not see that these are read here: a frame that is not ours never shows our number,
// neither before nor after such a write, since no other socket has it.
//
//go:norace
func (s *Socket) lent(dst []Frame, state frameState) []Frame {
	if s.id == 0 {
		return dst
	}
	for i := range s.state {
		if s.state[i] == state {
			dst = append(dst, Frame(i))
		}
	}
	return dst
}

// removeFromMap stops the XDP program from redirecting to the socket.
func (s *Socket) removeFromMap() error {
	if s.cfg.XSKMap == nil {
		return nil
	}
	err := s.cfg.XSKMap.Delete(uint32(s.cfg.Queue))
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.EBADF) {
		return nil // EBADF: the map was closed, as with an Attachment closed first
	}
	if errors.Is(err, unix.EPERM) {
		return s.unwritableMap("taken out of", err)
	}
	if err != nil {
		return fmt.Errorf("afxdp: remove queue %d from the XSKMAP: %w", s.cfg.Queue, err)
	}
	return nil
}

// teardown unmaps the rings and closes the kernel's socket. The mappings hold a reference to the
// socket, so the queue is released only after both.
func (s *Socket) teardown() error {
	var errs []error
	if s.bound && s.hasMates() {
		s.settleFrames()
	}
	if s.bound && s.direct {
		s.left = depart(s.queue, s.home, s.umem)
	}
	for _, m := range s.mappings {
		errs = append(errs, unix.Munmap(m))
	}
	s.mappings = nil
	s.disconnect()
	s.in.publishCounters()
	s.out.publishCounters()
	s.umem.mu.Lock()
	s.bound, s.registered = false, false
	if s.fd >= 0 {
		// Kernel counters end with the kernel's socket. A failure to read them does not prevent
		// closing it.
		s.past, _ = s.kernelStats()
		errs = append(errs, os.NewSyscallError("close", unix.Close(s.fd)))
		s.fd = -1
	}
	s.umem.mu.Unlock()
	if s.mates != nil {
		for _, m := range s.partFromQueue() {
			errs = append(errs, unix.Munmap(m))
		}
	}
	errs = append(errs, s.hook.releaseHook(), s.clock.Swap(nil).closeClock())
	s.hook = nil
	return errors.Join(errs...)
}

// detach is teardown for callers that do not hold UMEM.sharing.
func (s *Socket) detach() error {
	if s.cfg.ShareQueue {
		s.umem.sharing.Lock()
		defer s.umem.sharing.Unlock()
	}
	return s.teardown()
}

// disconnect leaves the socket with empty rings, on which every method finds nothing to do.
func (s *Socket) disconnect() {
	s.rx, s.tx = descRing{ring: emptyRing()}, descRing{ring: emptyRing()}
	s.fill, s.completion = addrRing{ring: emptyRing()}, addrRing{ring: emptyRing()}
	s.rxSkip = false
	s.calls = socketCalls{fd: -1}
}

// register assigns the socket its number on the UMEM.
func (u *UMEM) register(s *Socket) (err error) {
	s.id, err = u.takeNumber(s)
	return err
}

// takeNumber allocates a number, for a socket or, with nil, for a shared queue.
func (u *UMEM) takeNumber(s *Socket) (uint16, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return 0, fmt.Errorf("afxdp: UMEM is closed: %w", net.ErrClosed)
	}
	for id := uint16(1); id <= maxSockets; id++ {
		if u.numbers[id] {
			continue
		}
		u.numbers[id] = true
		if s != nil {
			u.sockets[id] = s
		}
		return id, nil
	}
	return 0, fmt.Errorf("%w: a UMEM serves at most %d sockets, and closed ones count until Reclaim took their frames back",
		ErrConfig, maxSockets)
}

func (u *UMEM) giveNumber(number uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.numbers[number] = false
}

// unregister removes a socket that no longer holds its queue. Its number stays allocated while
// frames have it: another socket's Reclaim or Reopen would take them for its own.
func (u *UMEM) unregister(s *Socket) error {
	holds := s.former != nil || len(s.lent(nil, s.filling)) > 0 || len(s.lent(nil, s.flying)) > 0
	u.mu.Lock()
	delete(u.sockets, s.id)
	u.mu.Unlock()
	if holds {
		return nil
	}
	return u.releaseID(s)
}

// releaseID releases the number of a socket. No frame has it.
func (u *UMEM) releaseID(s *Socket) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.numbers[s.id] = false // number 0 is unused
	s.id = 0
	home := s.home
	s.home = nil
	return u.leaveNamespace(home)
}
