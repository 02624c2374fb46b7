package soak

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
)

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

// watch begins to read the calling thread's statistics and returns what ends
// that. Kernels may lack them; then no time is excused.
func (s *sleep) watch() (end func()) {
	var err error
	if s.sched, err = os.Open("/proc/thread-self/schedstat"); err != nil {
		return func() {}
	}
	return func() { _ = s.sched.Close() }
}

// runDelay returns how long the thread has been ready to run without a CPU.
func (s *sleep) runDelay() time.Duration {
	var b [64]byte
	if s.sched == nil {
		return 0
	}
	n, _ := s.sched.ReadAt(b[:], 0)
	fields := strings.Fields(string(b[:n]))
	if len(fields) < 2 {
		return 0
	}
	ns, _ := strconv.ParseInt(fields[1], 10, 64)
	return time.Duration(ns)
}

// poll waits for packets, or, while frames are out, for completions.
func (p *port) poll(want afxdp.Events, timeout time.Duration) error {
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
	p.sleep.took = time.Duration(now() - start)
	p.sleep.unwoken = p.sleep.took >= lateAfter && overslept(s) != before
	return err
}

// overslept returns how often the socket's Poll found packets that the kernel
// had not woken it for. A closed socket counts no more.
func overslept(s *afxdp.Socket) uint64 {
	st, _ := s.Stats()
	return st.Overslept
}

// arrived is told the first packet of a batch. If the port slept for long after
// the packet had come, and not for want of a CPU, the packet was late. If the
// kernel did not even end the sleep, a wake-up was lost.
func (p *port) arrived(first packet) {
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
