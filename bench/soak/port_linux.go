// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// What a port's goroutine is doing.
const (
	doingWork int32 = iota
	doingPoll
	doingRecover
	doingOpen
	doingHold
)

var doingNames = [...]string{"works", "polls", "recovers", "opens its socket", "is held"}

// port is one queue of an end: a socket that may be closed, reopened and lose
// its interface at any time. Its goroutine is the only one that uses socket and
// pool; others may close and wake the socket.
type port struct {
	end   *end
	role  role
	queue int
	pool  *afxdp.Pool
	sock  atomic.Pointer[afxdp.Socket]
	calls chan func() // functions to run on the port's goroutine

	frames [framesEach]afxdp.Frame
	descs  [batch]afxdp.Desc

	// Where the goroutine is, for the watchdog.
	doing   atomic.Int32
	since   atomic.Int64
	thread  atomic.Int32
	because atomic.Pointer[string] // why it recovers

	sleep sleep

	counts   counts            // since the last account, but for the socket's
	reported map[string]uint64 // the socket's counters in the last account
}

func (p *port) runLoop(ctx context.Context) error {
	p.thread.Store(int32(unix.Gettid()))
	defer p.sleep.watchThread()()
	for ctx.Err() == nil {
		select {
		case call := <-p.calls:
			call()
			continue
		default:
		}
		if err := p.role.movePackets(); err != nil {
			p.enterState(doingRecover)
			why := err.Error()
			p.because.Store(&why)
			if err := p.restoreSocket(ctx, err); err != nil && ctx.Err() == nil {
				return fmt.Errorf("soak: queue %d of %s: %w", p.queue, p.end.ifname, err)
			}
			p.enterState(doingWork)
		}
	}
	return nil
}

func (p *port) enterState(doing int32) {
	p.since.Store(now())
	p.doing.Store(doing)
}

// openSocket opens a socket where there is none, as soon as the interface allows it.
func (p *port) openSocket(ctx context.Context) error {
	p.enterState(doingOpen)
	for {
		s, err := afxdp.Open(p.pool, afxdp.Config{
			Interface: p.end.ifname, Queue: p.queue, XSKMap: p.end.sockets,
			RxRing: ringSize, TxRing: ringSize, FillRing: ringSize, CompletionRing: ringSize,
			RxFrames: fillEach, BindTimeout: patience,
		})
		switch {
		case err == nil:
			p.sock.Store(s)
			p.reported = nil
			return p.end.reattachProgram()
		case !errors.Is(err, afxdp.ErrLinkDown) && !errors.Is(err, afxdp.ErrInterfaceGone):
			return err
		}
		if err := experiment.Sleep(ctx, retry); err != nil {
			return err
		}
	}
}

func (p *port) restoreSocket(ctx context.Context, cause error) error {
	s := p.sock.Load()
	switch {
	case errors.Is(cause, net.ErrClosed):
		flying, err := s.Reclaim()
		if err != nil {
			return err
		}
		if err := p.pool.Free(flying...); err != nil {
			return err
		}
		return p.openSocket(ctx)
	case errors.Is(cause, afxdp.ErrLinkDown), errors.Is(cause, afxdp.ErrInterfaceGone):
		if err := s.Recover(ctx); err != nil {
			if errors.Is(err, net.ErrClosed) {
				return p.restoreSocket(ctx, net.ErrClosed)
			}
			return err
		}
		return p.end.reattachProgram()
	}
	return cause
}

// runOnLoop runs fn on the port's goroutine and waits for it.
func (p *port) runOnLoop(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	select {
	case p.calls <- func() { fn(); close(done) }:
		p.wakePort()
	case <-ctx.Done():
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("soak: queue %d of %s does not answer: %s: %w", p.queue, p.end.ifname, p.describePlace(),
			context.Cause(ctx))
	}
}

// wakePort makes a sleeping goroutine check for calls.
func (p *port) wakePort() { p.sock.Load().Wake() }

func (p *port) receiveBatch() ([]afxdp.Desc, error) {
	n, err := p.sock.Load().Receive(p.descs[:])
	return p.descs[:n], err
}

// checkPacket reads a packet and counts it if it is corrupt. Foreign frames, which have
// no sender here, count as corrupt too.
func (p *port) checkPacket(b []byte) (packet, bool) {
	pkt, err := read(b)
	if err != nil {
		p.noteSpoilt(err)
	}
	return pkt, err == nil
}

func (p *port) noteSpoilt(err error) {
	p.counts.addCounts(counts{Corrupt: 1, FirstCorrupt: err.Error()})
}

// giveBack frees frames if a call failed because the socket is closed; they are
// then still the program's. It returns the call's error.
func (p *port) giveBack(descs []afxdp.Desc, cause error) error {
	if !errors.Is(cause, net.ErrClosed) {
		return cause
	}
	for _, d := range descs {
		if err := p.pool.Free(d.Frame); err != nil {
			return errors.Join(cause, err)
		}
	}
	return cause
}

// collectFrames takes back frames that were sent: into the fill ring if there is room
// and fill is set, the rest into the pool.
func (p *port) collectFrames(fill bool) error {
	s := p.sock.Load()
	n, err := s.Completed(p.frames[:])
	if err != nil {
		return err
	}
	filled := 0
	if fill {
		filled, err = s.Fill(p.frames[:n])
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return errors.Join(err, p.pool.Free(p.frames[filled:n]...))
}

// isSettled and describeWait are those of a role that remembers no packets.
func (p *port) isSettled() bool {
	s := p.sock.Load()
	return s.Backlog() == 0 && s.InFlight() == 0
}

func (p *port) describeWait() string {
	s := p.sock.Load()
	return fmt.Sprintf("backlog %d, in flight %d, %d frames free", s.Backlog(), s.InFlight(), p.pool.Available())
}

// describePlace describes what the goroutine is doing. Any other may call it.
func (p *port) describePlace() string {
	doing := p.doing.Load()
	s := fmt.Sprintf("%s since %v, thread %s", doingNames[doing],
		time.Duration(now()-p.since.Load()).Round(time.Millisecond), threadState(p.thread.Load()))
	if why := p.because.Load(); why != nil && doing == doingRecover {
		s += ", because: " + *why
	}
	return s
}

// threadState returns the state of a thread of this process: R if it has a CPU or
// waits for one, S if it sleeps, and where.
func threadState(tid int32) string {
	state, wchan := "?", ""
	if fields, _ := sys.StatFields(fmt.Sprintf("/proc/self/task/%d/stat", tid)); len(fields) > 0 {
		state = fields[0]
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/wchan", tid)); err == nil && len(b) > 1 {
		wchan = " in " + string(b)
	}
	return state + wchan
}

// lateAfter is how long a packet may lie waiting for a sleeping receiver.
const lateAfter = 20 * time.Millisecond

// sleep is a port's last time in Poll, to tell late packets from punctual ones.
type sleep struct {
	took    time.Duration
	unwoken bool // it ended by itself, with packets there

	sched    *os.File      // the thread's scheduling statistics
	waited   time.Duration // without a CPU, until waitedAt
	waitedAt int64
}

// watchThread begins to read the calling thread's statistics and returns what ends
// that. Kernels may lack them; then no time is excused.
func (s *sleep) watchThread() (end func()) {
	s.sched, _ = os.Open("/proc/thread-self/schedstat")
	return func() { _ = s.sched.Close() }
}

// runDelay returns how long the thread has been ready to run without a CPU.
func (s *sleep) runDelay() time.Duration {
	var b [64]byte
	n, _ := s.sched.ReadAt(b[:], 0) // none without the file
	_, fields, _ := strings.Cut(string(b[:n]), " ")
	second, _, _ := strings.Cut(fields, " ")
	ns, _ := strconv.ParseInt(second, 10, 64)
	return time.Duration(ns)
}

// pollSocket waits for packets, or, while frames are out, for completions.
func (p *port) pollSocket(want afxdp.Events, timeout time.Duration) error {
	start := now()
	if start-p.sleep.waitedAt > int64(lateAfter/2) {
		p.sleep.waited, p.sleep.waitedAt = p.sleep.runDelay(), start
	}
	s := p.sock.Load()
	before := overslept(s)
	p.since.Store(start)
	p.doing.Store(doingPoll)
	_, err := s.Poll(want, timeout)
	p.doing.Store(doingWork)
	p.sleep.recordEnd(time.Duration(now()-start), timeout, overslept(s) != before)
	return err
}

// recordEnd records a sleep. After its time it may have waited for one of the processors of Go's
// scheduler, and packets may have arrived meanwhile: then these do not show a lost wake-up.
func (s *sleep) recordEnd(took, timeout time.Duration, overslept bool) {
	s.took, s.unwoken = took, overslept && took >= lateAfter && (timeout < 0 || took < timeout+lateAfter/2)
}

// overslept returns how often the socket's Poll found packets that the kernel
// had not woken it for. A closed socket counts no more.
func overslept(s *afxdp.Socket) uint64 {
	st, _ := s.Stats()
	return st.Overslept
}

// noteArrival records the first packet of a batch. If the port slept for long after
// the packet had come, and not for want of a CPU, the packet was late. If the
// kernel did not even end the sleep, a wake-up was lost.
func (p *port) noteArrival(first packet) {
	waited := min(time.Duration(now()-max(first.sent, first.arrived)), p.sleep.took)
	p.sleep.took = 0
	if waited < lateAfter {
		return
	}
	waited -= p.sleep.runDelay() - p.sleep.waited
	if waited >= lateAfter {
		p.counts.Late++
		p.counts.Latest = max(p.counts.Latest, waited)
		if p.sleep.unwoken {
			p.counts.LostWakeups++
		}
	}
}

var started = time.Now()

// bootAt is the kernel's monotonic clock at the time started. Both processes read
// that clock, so that one can tell how long ago the other wrote a stamp. A process
// may lose its CPU between reading one clock and the other, so the closest of
// several readings counts.
var bootAt = func() int64 {
	var at int64
	for closest, try := time.Duration(math.MaxInt64), 0; try < 100; try++ {
		var ts unix.Timespec
		before := time.Since(started)
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic(err) // every kernel has it
		}
		if took := time.Since(started) - before; took < closest {
			at, closest = ts.Nano()-int64(before+took/2), took
		}
	}
	return at
}()

// now returns the kernel's monotonic clock in nanoseconds.
func now() int64 { return bootAt + int64(time.Since(started)) }
