// Package engine measures how fast a program can send, receive and return
// Ethernet frames, and what that costs, for package afxdp and for the other
// ways there are on Linux. It is what 'libra bench engine' runs.
//
// # The bed
//
// One veth pair joins two anonymous network namespaces. The tested program runs
// alone at the tested end, pinned to the first CPU. Everything else runs at, or
// for, the opposite end, pinned to the second CPU: the NAPI threads of both ends
// of the pair, the XDP program that meets the frames, the generator.
//
//	CPU 0                          CPU 1
//	tested program --- veth --- XDP program: count and drop, or reflect
//	                            frame generator
//
// # The tests
//
//   - transmit: the tested program sends as fast as it can, in batches of 64. The
//     opposite end counts and drops in XDP; what it counted is the rate.
//   - receive: the opposite end makes frames as fast as the CPU lets it, in the
//     kernel (BPF_PROG_RUN on live frames) for frames that fit a page, with a
//     packet socket for jumbo frames. The tested program counts the frames that reached its
//     memory and drops them.
//   - echo: 256 frames circulate between the tested program, which sends
//     back every frame that it receives, and an XDP program that does the same.
//     The rate is that of frames which the tested program received.
//   - request-response: the tested program sends one frame to the same XDP
//     reflector and waits for its return.
//   - push: the opposite end is the XDP aggregator of package bpf with a job of 30,000
//     slots (combine, exact, dense). The tested program sends it hot frames of one stripe (190
//     bytes) or ten (1414 bytes), 128 in flight, and counts acknowledgements.
//
// # The push test
//
// It measures what reliability and packing cost on top of moving the frames. Its
// baselines take turns within each round:
//
//   - libra is the whole push path, package transport's worker: pushes of 4180 distinct
//     keys, drawn by a Zipf distribution (exponent 1.1) from the hot set, 256 different ones in
//     turn and 16 at a time, are looked up, packed into UMEM, sealed with a
//     checksum, sent through the window, acknowledged, timed.
//   - bare is package afxdp alone against the same aggregator. Frames of the same pushes are
//     written once, before the test; for each frame sent only the sequence number and, by
//     the difference, the UDP checksum change. Acknowledgements are received
//     and released. There is no lookup, packing, window or timer. libra/bare is what
//     the endpoint's own work costs.
//   - echo is the echo test of package afxdp. Its opposite end only changes addresses and
//     adds nothing, and whole frames come back instead of headers. libra/echo contains the
//     aggregator's work too.
//
// Where the opposite end is the bottleneck, the endpoint's work hides behind it: the
// CPU time of a frame tells which end it is.
//
// All baselines have the same opposite end, the same frames, and the same windows
// for measuring. A size is that of the Ethernet frame without its check sequence.
//
// # What is the same, and what is not
//
// The programs on AF_XDP have rings of 2048 entries, 4096 chunks, batches of 64, and
// look at their rings for 100 µs before they sleep. The C program raises the send
// budget and the send buffer as package afxdp does; asavie/xdp is used as in its
// examples, which do not. The UDP socket sends without checksums, since the programs
// on AF_XDP compute none. It needs an XDP program that passes everything at its end
// in echo and request-response: without one, veth does not wake the receiver of
// frames that XDP_TX sent. In an echo, a program that received nothing for a tenth
// of a second takes the frames for lost and sends new ones.
//
// # What is measured
//
// Rates are differences of counters between two moments, after a warm-up. CPU
// time is what the kernel charges to the tested process (getrusage, all its
// threads) plus, as kernel time, what the NAPI thread of its end of the cable used.
// On a kernel that does not account interrupts separately, softirq work that runs in
// the context of a process is in that process's kernel time. Time of the other NAPI
// thread is given apart: it stands for the machine at the far end.
//
// Every program has a process of its own. Baselines take turns within a round, and
// rounds are repeated, so a machine that is slower for a while is slower for all of
// them. Results are medians over rounds; ratios are those of the medians, and within
// rounds.
package engine

import (
	"fmt"
	"runtime"
	"time"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/wire"
)

// Test is the name of a measurement; see the package documentation.
type Test string

// The tests.
const (
	Transmit        Test = "transmit"
	Receive         Test = "receive"
	Echo            Test = "echo"
	RequestResponse Test = "request-response"
	Push            Test = "push"
)

// Tests returns all tests.
func Tests() []Test { return []Test{Transmit, Receive, Echo, RequestResponse, Push} }

// What is compared.
const (
	Libra      = "libra"       // package afxdp; in push, package transport's worker on it
	Libxdp     = "libxdp"      // a C program on libxdp
	Asavie     = "asavie"      // github.com/asavie/xdp
	UDP        = "udp"         // UDP socket, sendmmsg and recvmmsg
	DPDK       = "dpdk-af_xdp" // DPDK's testpmd on net_af_xdp
	Bare       = "bare"        // package afxdp with frames that are ready to send; push only
	EchoInPush = "echo"        // Libra in the echo test, as a reference within push
)

// Baselines returns Libra and what it is compared with, in the order of their
// turns.
func Baselines() []string { return []string{Libra, Libxdp, Asavie, UDP, DPDK, Bare, EchoInPush} }

// Frame sizes in bytes, with the Ethernet header and without the check sequence.
const (
	minSize   = 64
	jumboSize = 9014 // an MTU of 9000
	maxPlain  = 1514 // an MTU of 1500

	minHot = wire.EnvelopeLen + wire.HeaderLen + wire.StripeLen
	maxHot = wire.EnvelopeLen + wire.HeaderLen + wire.MaxStripes*wire.StripeLen
)

// Sizes returns the default frame sizes: the smallest, a Libra frame of one
// stripe, a middle one, a Libra frame of ten stripes, and a jumbo frame.
func Sizes() []int { return []int{minSize, minHot, 512, maxHot, jumboSize} }

// Config is what to measure; [Defaults] is everything.
type Config struct {
	Tests []Test
	// Sizes of frames in bytes, 64 to 9014. Frames larger than 1514 bytes are jumbo
	// frames and get a bed with an MTU of 9000.
	Sizes []int
	// Baselines to run, of Baselines(). Libra need not be among them, but ratios
	// are only made against it.
	Baselines []string
	// Rounds is how often each measurement is repeated.
	Rounds   int
	Duration time.Duration // of one measurement
	WarmUp   time.Duration // before each measurement
	// CPUs are where the tested program and the opposite end run.
	CPUs         [2]int
	ChildCommand []string         // calls [RunChild]; nil: see [child.Command]
	Progress     harness.Progress // may be nil
}

// Defaults returns the configuration that measures everything, on the first two
// CPUs if there are two.
func Defaults() Config {
	return Config{
		Tests: Tests(), Sizes: Sizes(), Baselines: Baselines(), Rounds: 5,
		Duration: 500 * time.Millisecond, WarmUp: 200 * time.Millisecond, CPUs: [2]int{0, min(1, runtime.NumCPU()-1)},
	}
}

func (c *Config) check() error {
	return harness.Check("engine",
		harness.Known("test", Tests(), c.Tests...),
		harness.InRange("bytes in a frame", minSize, jumboSize, c.Sizes...),
		harness.Known("baseline", Baselines(), c.Baselines...),
		harness.InRange("rounds", 1, 1000, c.Rounds),
		harness.InRange("for one measurement", 10*time.Millisecond, time.Minute, c.Duration),
		harness.InRange("of warm-up", 0, time.Minute, c.WarmUp),
		harness.InRange("as the number of a CPU", 0, runtime.NumCPU()-1, c.CPUs[:]...),
	)
}

// excluded tells where and why a baseline has no part in a test at a size; empty
// if it has.
func excluded(baseline string, test Test, size int) string {
	pushes := baseline == Libra || baseline == Bare || baseline == EchoInPush
	switch {
	case pushes && test == Push && pushStripes(size) == 0:
		return fmt.Sprintf("push: frames of other than %d and %d bytes, which have 1 and %d stripes", minHot, maxHot, wire.MaxStripes)
	case test == Push && !pushes:
		return "push: it is no worker"
	case test != Push && (baseline == Bare || baseline == EchoInPush):
		return "other tests than push: it is a reference for that"
	case baseline == Asavie && size > maxPlain:
		return "jumbo frames: it has no multi-buffer packets"
	case baseline == DPDK && test == RequestResponse:
		return "request-response: testpmd measures no round-trip time"
	case baseline == DPDK && size > maxPlain:
		return "jumbo frames: DPDK's driver takes none"
	}
	return ""
}

// pushStripes returns the number of stripes of the hot frames that the push test
// sends at a size, or 0 if it has none of that size.
func pushStripes(size int) int {
	switch size {
	case minHot:
		return 1
	case maxHot:
		return wire.MaxStripes
	}
	return 0
}
