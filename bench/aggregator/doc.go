// Package aggregator measures what an aggregator costs and what it brings. It is
// what 'libra bench aggregator' runs, and part of 'libra lut study'.
//
// # Cost
//
// The XDP program alone, by the kernel's test run: an XDP program in front of it
// (bpf.Feeder) makes a new frame with a new sequence number in every iteration,
// and what that takes is subtracted. What is left is everything that the program
// does with a frame: parsing, both checksums, admission, the duplicate filter,
// the additions, and the answer. A network card, its driver, and the copies of a
// veth pair are not in it.
//
// Frames hold random numbers for random ranks, different ones in a frame, as a
// worker's are. Combine and fetchadd get dense frames of one sender, all of whose
// lanes are used; in fetchadd every answer carries the sums. Sync gets lane-aligned
// frames of four workers in turn, so that every fourth frame completes a round. The
// arithmetics and frame lengths of one mode take turns within a round.
//
// # Throughput
//
// The same, against the number of hot parameters, with ranks that are drawn
// uniformly or by a Zipf distribution, which is what Figures 13 and 14 of libra.txt
// vary. The more parameters are hot, the fewer pairs are left to the parameter
// server; so the rate of the store (package ps) is measured on the pairs that are
// left, from encoded COLD frames. If a share h of the pairs is hot, aggregator
// and server together take min(A/h, S/(1-h)) pairs a second, where A and S are
// their rates, each on one core; that is what a table gives beside the server
// alone. There is no network in either.
//
// # Negotiation
//
// Workers, each with an endpoint of package transport, reduce a vector of hot
// parameters round by round through an aggregator in sync mode, over UDP sockets of
// the loopback interface and the Go model, or over AF_XDP sockets and the XDP
// program on a network of namespaces. With fixed arithmetic they negotiate the
// scale first, which takes a round trip in which everybody waits for the slowest
// (Figure 17). All endpoints share the machine's cores.
package aggregator
