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
