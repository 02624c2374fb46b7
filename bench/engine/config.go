// SPDX-License-Identifier: Apache-2.0

// Package engine measures how fast a program can send, receive and return
// Ethernet frames, and what that costs, for package afxdp and for the other
// ways there are on Linux. It is what 'libra bench engine' runs; docs/benchmarks.md
// describes its bed, tests and baselines.
package engine

import (
	"fmt"
	"runtime"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// Test is the name of a measurement; see docs/benchmarks.md.
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
	Libra      = "libra"            // package afxdp; in push, package transport's worker on it, with prepared batches
	Libxdp     = "libxdp"           // a C program on libxdp
	Asavie     = "asavie"           // github.com/asavie/xdp
	UDP        = "udp"              // UDP socket, sendmmsg and recvmmsg
	DPDK       = "dpdk-af_xdp"      // DPDK's testpmd on net_af_xdp
	Unprepared = "libra-unprepared" // the same worker, which looks the keys of each push up; push only
	Bare       = "bare"             // package afxdp with frames that are ready to send; push only
	EchoInPush = "echo"             // Libra in the echo test, as a reference within push
)

// Baselines returns Libra and what it is compared with, in the order of their
// turns.
func Baselines() []string {
	return []string{Libra, Libxdp, Asavie, UDP, DPDK, Unprepared, Bare, EchoInPush}
}

// pushOnly returns whether a baseline is a reference for the test push.
func pushOnly(baseline string) bool {
	return baseline == Unprepared || baseline == Bare || baseline == EchoInPush
}

// Frame sizes in bytes, with the Ethernet header and without the check sequence.
const (
	minSize   = 64
	jumboSize = 9014 // an MTU of 9000
	maxPlain  = 1514 // an MTU of 1500

	minHot = wire.EnvelopeLen + wire.HeaderLen + wire.StripeLen
	maxHot = wire.EnvelopeLen + wire.HeaderLen + wire.DefaultStripes*wire.StripeLen
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
	ChildCommand []string            // calls [RunChild]; nil: see [child.Command]
	Progress     experiment.Progress // may be nil
}

// Defaults returns the configuration that measures everything, on the first two
// CPUs if there are two.
func Defaults() Config {
	return Config{
		Tests: Tests(), Sizes: Sizes(), Baselines: Baselines(), Rounds: 5,
		Duration: 500 * time.Millisecond, WarmUp: 200 * time.Millisecond, CPUs: [2]int{0, min(1, runtime.NumCPU()-1)},
	}
}

func (c *Config) checkFields() error {
	return experiment.Check("engine",
		experiment.Known("measure", Tests(), c.Tests...),
		experiment.InRange("sizes", minSize, jumboSize, c.Sizes...),
		experiment.Known("baseline", Baselines(), c.Baselines...),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("duration", 10*time.Millisecond, time.Minute, c.Duration),
		experiment.InRange("warm-up", 0, time.Minute, c.WarmUp),
		experiment.InRange("CPU", 0, runtime.NumCPU()-1, c.CPUs[0]), // the two may be one
		experiment.InRange("CPU", 0, runtime.NumCPU()-1, c.CPUs[1]),
	)
}

// excluded says where and why a baseline has no part in a test at a size; empty
// if it has.
func excluded(baseline string, test Test, size int) string {
	pushes := baseline == Libra || pushOnly(baseline)
	switch {
	case pushes && test == Push && pushStripes[size] == 0:
		return fmt.Sprintf("push: frames of other than %d and %d bytes, which have 1 and %d stripes", minHot, maxHot,
			wire.DefaultStripes)
	case test == Push && !pushes:
		return "push: it is no worker"
	case test != Push && pushOnly(baseline):
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

// pushStripes has the number of stripes of the hot frames that the push test
// sends at a size, 0 if it has none of that size.
var pushStripes = map[int]int{minHot: 1, maxHot: wire.DefaultStripes}
