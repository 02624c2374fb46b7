// Package push measures pushes through the whole system, from a worker's slices
// to the acknowledgement, beside the same pushes as key-value messages over
// ZeroMQ. It is what 'libra bench push' runs.
//
// # The workload
//
// A push is a batch of distinct (key, gradient) pairs, sorted by key, drawn from
// 2^20 keys with a Zipf distribution of exponent 1.1. Every worker has 1,024
// different batches, which it pushes in turn, and keeps 16 pushes unacknowledged.
// Keys are scattered over 64 bits, as hashed features are. Batches are made
// before the measurement and lie in memory that the processes share; all baselines
// push the same.
//
// # The baselines
//
//   - libra: a test bed of network namespaces, one for each worker and one for the
//     parameter server, around a switch whose ports carry the XDP aggregator. The
//     30,000 hottest keys are the hot set, about 64 % of the pairs of batches of
//     4,096 (and more of smaller ones, whose pairs are less often kept from being
//     drawn twice). The server takes the cold pairs and harvests the aggregator
//     every 50 ms. Workers push through transport.Worker.PushLater, so that small
//     batches share frames.
//   - zeromq-hash: the pattern of ps-lite, in C++ on libzmq: a push is a message of
//     sorted keys and values that are sent without being copied, the server sums in a
//     std::unordered_map as ps-lite's default handle does. All runs in the
//     namespace of libra's server, over its loopback device, which is faster than the
//     veth pairs and the bridge: segments of 64 KiB, and no switch.
//   - zeromq-table: the same, summed in a port of the parameter server's store
//     (package ps). What libra gains over it is not the gain of a better table.
//
// A server knows all keys before the measurement begins. No baseline applies an
// optimiser. The processes of all are pinned in the same way: the server to the
// first CPU, the workers, one after the other, to the next ones.
//
// # What is measured
//
// Baselines take turns within a round, and rounds are repeated, so a machine that is
// slower for a while is slower for all. Figures are medians over the rounds. A
// rate is what the workers had acknowledged between two moments, after a warm-up.
//
// After each measurement, the sums that the server holds (of libra: the cold
// sums and all that it harvested) are compared with those of what the workers
// pushed, bit for bit; a difference ends the run. All gradients are small multiples
// of 2^-8, so that float32 sums are exact, too.
//
// # Whose time is whose
//
// CPU time is given in nanoseconds per pair, in four parts that add up:
//
//   - worker, ps: user time of the processes (getrusage).
//   - aggregator: run time of the XDP program (the kernel's BPF run-time
//     statistics, which cost some 30 ns a frame while they are on), and all CPU time of
//     the control service that serves harvests.
//   - kernel: system time of workers and server, and of the ksoftirqd threads,
//     less the XDP program's run time. A veth pair passes a frame on in a softirq.
//     The kernel runs it when the sending system call enables softirqs again, in the
//     context of that call, and charges it to the sender: receiving, the XDP program
//     and the way of an ACK back to the worker are in the worker's system time;
//     forwarding a cold frame and putting it into the server's ring, too. What is
//     left over when a softirq takes long runs in ksoftirqd, whose time cannot be
//     told from that of other users of the machine. The same holds for the loopback
//     device and its TCP.
package push

import (
	"runtime"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// What is compared.
const (
	// Libra is the whole system: AF_XDP workers, the XDP aggregator, the
	// parameter server.
	Libra = "libra"
	// ZeroMQHash is ps-lite's pattern over ZeroMQ, summed in a
	// std::unordered_map as its default handle does.
	ZeroMQHash = "zeromq-hash"
	// ZeroMQTable is the same transport, summed in a port of the parameter
	// server's own table.
	ZeroMQTable = "zeromq-table"
)

// Baselines returns Libra and what it is compared with, in the order of their
// turns.
func Baselines() []string { return []string{Libra, ZeroMQHash, ZeroMQTable} }

// The workload, as the package documentation describes it.
const (
	// Keys is the number of different keys.
	Keys = 1 << 20
	// Exponent is that of the Zipf distribution of the keys.
	Exponent = 1.1
	// HotKeys is how many of the hottest keys the aggregator sums.
	HotKeys = 30_000
	// InFlight is how many pushes of a worker may be unacknowledged.
	InFlight = 16

	// batchesEach is the number of different batches of a worker.
	batchesEach = 1024
)

// Config is what to measure; [Defaults] is everything.
type Config struct {
	Workers   []int    // numbers of workers
	Batches   []int    // numbers of pairs in a push
	Baselines []string // of Baselines(), Libra among them
	// Rounds is how often each measurement is repeated.
	Rounds       int
	Duration     time.Duration    // of one measurement
	WarmUp       time.Duration    // before each measurement
	Harvest      time.Duration    // between two harvests of the aggregator's sums
	ChildCommand []string         // calls [RunChild]; nil: see [child.Command]
	Progress     harness.Progress // may be nil
}

// Defaults returns the configuration that measures everything.
func Defaults() Config {
	return Config{
		Workers: []int{1, 2, 4, 8}, Batches: []int{4096, 256, 32}, Baselines: Baselines(), Rounds: 3,
		Duration: 250 * time.Millisecond, WarmUp: 100 * time.Millisecond, Harvest: 50 * time.Millisecond,
	}
}

func (c *Config) check() error {
	return harness.Check("push",
		harness.InRange("workers", 1, 64, c.Workers...),
		harness.InRange("pairs in a batch", 1, 16384, c.Batches...),
		harness.Known("baseline", Baselines(), c.Baselines...),
		harness.InRange("rounds", 1, 1000, c.Rounds),
		harness.InRange("for one measurement", 10*time.Millisecond, time.Minute, c.Duration),
		harness.InRange("of warm-up", 0, time.Minute, c.WarmUp),
		harness.InRange("between two harvests", time.Millisecond, time.Minute, c.Harvest),
	)
}

// cpu returns the CPU of a process: the server is the first one, worker i comes
// i+1 places after it.
func cpu(process int) int { return process % runtime.NumCPU() }
