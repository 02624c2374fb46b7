// Package soak keeps AF_XDP echo traffic flowing while it breaks what the
// traffic needs, again and again, and holds package afxdp to losing nothing but
// packets. It is what 'libra bench soak' runs.
//
// # The links
//
// Two veth pairs, each end in a namespace of its own. At one end of each is a
// client of package afxdp in this process; it numbers its packets, keeps a
// window of them on their way and checks what comes back. At the other end is
//
//   - link "process": an AF_XDP echo server, a process of its own. Two queues:
//     at both ends, two goroutines with a socket each share one UMEM.
//   - link "xdp": an XDP program that sends back (XDP_TX). One queue.
//
// # The rounds
//
// A round first lets packets flow undisturbed, then pauses the clients and
// takes stock. Then packets flow again, and on each link something happens: a
// queue's socket is closed by another goroutine and opened again, or reopened,
// on either side; an interface goes down and up, at either end; the MTU shrinks
// below the size of most packets and grows again; the server is killed and
// started again, or the XDP program detached and attached; the link is deleted
// and made again. When answers come again the clients pause, and stock is taken
// once more.
//
// # What is checked
//
//   - Frames: at every pause, those in the pools, in the hands of the program
//     and in the four rings, as counted by the positions that program and
//     kernel share, add up to the UMEM's, and the state bytes say the same.
//
//   - Progress: on every queue, an answer to a packet that was sent after the
//     disturbance had ended arrives within a bound; and so do answers in
//     undisturbed time. Otherwise the watchdog writes down what waits on what.
//
//   - Contents: every packet carries flow, number, length and a CRC-32C over
//     them and its body, checked by server and client; none is answered twice.
//
//   - Counts: in undisturbed time and over a change of MTU, the packets that
//     were sent are those that were answered and those in the kernel's drop
//     counters. Elsewhere the rest was in rings that the event destroyed.
//
//   - Memory: heap after garbage collection, descriptors and goroutines of both
//     processes stay where they were after the first events of every kind.
//
//   - Wake-ups: one that is lost would not show as a stall, since Poll looks at
//     the rings every 200 ms and clients give packets up after 50 ms. So a packet
//     counts as late if its receiver slept on for more than 20 ms, less the time
//     in which the receiver was awake but had no CPU. At both ends of link
//     "process" that is measured from the packet's arrival, which the XDP program
//     writes into it; on link "xdp", which has package afxdp's own program, from
//     when it was sent. A late packet means a lost wake-up if it was not the
//     kernel that ended the sleep. Other late packets are shown, not judged: on a
//     busy machine the kernel may have had no CPU to wake anybody, and Go's
//     scheduler gives a goroutine that returns from a system call to whichever of
//     its processors comes free.
//
// What cannot be counted is what an event destroys: packets in the rings of a
// killed process, of a closed socket or of a deleted interface.
package soak

import (
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// Config is how long to soak, and how; [Defaults] is ten minutes.
type Config struct {
	// Duration of the run, from 1s to a week. The round that it ends in is
	// completed; there is one at least.
	Duration time.Duration
	// Bound is the longest time that a queue may be without an answer while
	// nothing is broken, from 100ms to 1h.
	Bound time.Duration
	// Seed of the order of events and of how long they last.
	Seed uint64
	// ChildCommand calls [RunChild]; nil: see [child.Command].
	ChildCommand []string
	// Progress, if not nil, is called after each round with seconds.
	Progress harness.Progress
}

// Defaults returns the configuration of a run of ten minutes.
func Defaults() Config {
	return Config{Duration: 10 * time.Minute, Bound: 5 * time.Second, Seed: 1}
}

func (c *Config) check() error {
	return harness.Check("soak",
		harness.InRange("duration", time.Second, 7*24*time.Hour, c.Duration),
		harness.InRange("bound", 100*time.Millisecond, time.Hour, c.Bound),
	)
}
