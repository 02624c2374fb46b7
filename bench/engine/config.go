package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

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

// Names of peers.
const (
	PeerLibra        = "libra"          // package afxdp; in push, package transport's worker on it
	PeerLibxdp       = "libxdp"         // a C program on libxdp
	PeerAsavie       = "asavie"         // github.com/asavie/xdp
	PeerUDP          = "udp"            // UDP socket, sendmmsg and recvmmsg
	PeerUDPGSO       = "udp-gso"        // UDP socket with segmentation and receive offload
	PeerUDPSpin      = "udp-spin"       // UDP socket that is polled without sleeping; request-response only
	PeerAFPacket     = "af_packet"      // TPACKET_V3 through gopacket
	PeerDPDKAFXDP    = "dpdk-af_xdp"    // DPDK's testpmd on net_af_xdp
	PeerDPDKAFPacket = "dpdk-af_packet" // DPDK's testpmd on net_af_packet
	PeerBare         = "bare"           // package afxdp with frames that are ready to send; push only
	PeerEcho         = "echo"           // PeerLibra in the echo test, as a reference within push
)

// Peers returns the names of all peers in the order of their turns.
func Peers() []string {
	return []string{
		PeerLibra, PeerLibxdp, PeerAsavie, PeerUDP, PeerUDPGSO, PeerUDPSpin,
		PeerAFPacket, PeerDPDKAFXDP, PeerDPDKAFPacket, PeerBare, PeerEcho,
	}
}

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

// Config says what to measure; its zero value measures everything.
type Config struct {
	// Tests to run; empty: all of Tests().
	Tests []Test
	// Sizes of frames in bytes, 64 to 9014; empty: Sizes(). Frames larger than
	// 1514 bytes are jumbo frames and get a bed with an MTU of 9000.
	Sizes []int
	// Peers to run; empty: all of Peers(). PeerLibra need not be among them, but
	// ratios are only made against it.
	Peers []string
	// Rounds is how often each measurement is repeated; 0 means 5.
	Rounds int
	// Duration of one measurement; 0 means 500 ms.
	Duration time.Duration
	// WarmUp before each measurement; 0 means 200 ms.
	WarmUp time.Duration
	// CPUs are where the tested program and the opposite end run. The zero
	// value means 0 and 1, or 0 and 0 on a machine with one CPU.
	CPUs [2]int
	// PeerCommand is a command that calls RunPeer with the arguments that are appended to
	// it. Empty: this executable with the arguments "bench", "engine", "peer".
	PeerCommand []string
	// Progress, if not nil, is called before each measurement.
	Progress func(Step)
}

// Step is one measurement of a run.
type Step struct {
	Done, Total int // measurements before this one, and in all
	Test        Test
	Size        int // bytes
	Peer        string
	Round       int // from 0 on
}

// ErrConfig is wrapped by errors about a Config.
var ErrConfig = errors.New("engine: invalid configuration")

func (c Config) withDefaults() (Config, error) {
	if len(c.Tests) == 0 {
		c.Tests = Tests()
	}
	if len(c.Sizes) == 0 {
		c.Sizes = Sizes()
	}
	if len(c.Peers) == 0 {
		c.Peers = Peers()
	}
	if c.Rounds == 0 {
		c.Rounds = 5
	}
	if c.Duration == 0 {
		c.Duration = 500 * time.Millisecond
	}
	if c.WarmUp == 0 {
		c.WarmUp = 200 * time.Millisecond
	}
	if c.CPUs == [2]int{} && runtime.NumCPU() > 1 {
		c.CPUs[1] = 1
	}
	if len(c.PeerCommand) == 0 {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("engine: find this executable, which is to run the peers: %w", err)
		}
		c.PeerCommand = []string{self, "bench", "engine", "peer"}
	}
	return c, c.check()
}

func (c Config) check() error {
	for _, t := range c.Tests {
		if !slices.Contains(Tests(), t) {
			return fmt.Errorf("%w: no test %q; there are %v", ErrConfig, t, Tests())
		}
	}
	for _, size := range c.Sizes {
		if size < minSize || size > jumboSize {
			return fmt.Errorf("%w: frames of %d bytes, want %d to %d", ErrConfig, size, minSize, jumboSize)
		}
	}
	for _, p := range c.Peers {
		if !slices.Contains(Peers(), p) {
			return fmt.Errorf("%w: no peer %q; there are %v", ErrConfig, p, Peers())
		}
	}
	switch {
	case c.Rounds < 1:
		return fmt.Errorf("%w: %d rounds", ErrConfig, c.Rounds)
	case c.Duration < 10*time.Millisecond || c.Duration > time.Minute:
		return fmt.Errorf("%w: duration of %v, want 10ms to 1m", ErrConfig, c.Duration)
	case c.WarmUp < 0 || c.WarmUp > time.Minute:
		return fmt.Errorf("%w: warm-up of %v, want at most 1m", ErrConfig, c.WarmUp)
	}
	for _, cpu := range c.CPUs {
		if cpu < 0 || cpu >= runtime.NumCPU() {
			return fmt.Errorf("%w: CPU %d, this machine has 0 to %d", ErrConfig, cpu, runtime.NumCPU()-1)
		}
	}
	return nil
}

// excluded says where and why a peer has no part in a test at a size; empty if it has.
func excluded(peer string, test Test, size int) string {
	switch {
	case pushes(peer) && test == Push && pushStripes(size) == 0:
		return fmt.Sprintf("push: frames of other than %d and %d bytes, which have 1 and %d stripes", minHot, maxHot, wire.MaxStripes)
	case test == Push && !pushes(peer):
		return "push: it is no worker"
	case test != Push && (peer == PeerBare || peer == PeerEcho):
		return "other tests than push: it is a reference for that"
	case peer == PeerAsavie && size > maxPlain:
		return "jumbo frames: it has no multi-buffer packets"
	case peer == PeerUDPGSO && test == RequestResponse:
		return "request-response: a request is one datagram, there is nothing to segment"
	case peer == PeerUDPSpin && test != RequestResponse:
		return "other tests than request-response: it differs from udp only in how it waits for an answer"
	case (peer == PeerDPDKAFXDP || peer == PeerDPDKAFPacket) && test == RequestResponse:
		return "request-response: testpmd measures no round-trip time"
	case (peer == PeerDPDKAFXDP || peer == PeerDPDKAFPacket) && size > maxPlain:
		return "jumbo frames: DPDK's driver takes none"
	}
	return ""
}

// pushes says whether a peer takes part in the push test.
func pushes(peer string) bool { return peer == PeerLibra || peer == PeerBare || peer == PeerEcho }

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

// usesXDP says whether a peer attaches an XDP program of its own.
func usesXDP(peer string) bool {
	switch peer {
	case PeerLibra, PeerBare, PeerLibxdp, PeerAsavie, PeerDPDKAFXDP:
		return true
	}
	return false
}

// usesPacketSocket says whether frames reach a peer beside the protocol stack, which
// would answer them.
func usesPacketSocket(peer string) bool { return peer == PeerAFPacket || peer == PeerDPDKAFPacket }
