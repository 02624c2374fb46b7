// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Forward is the test of an interface that sends back what comes in, from any sender.
const Forward Test = "forward"

// InterfaceTests returns the tests of [RunInterface].
func InterfaceTests() []Test { return []Test{Transmit, Receive, Forward, RequestResponse} }

// InterfaceConfig is what to measure on an interface of this machine. Traffic is
// sent on it, or awaited from another machine.
type InterfaceConfig struct {
	Interface string
	// Peer is where frames go: an IPv4 address on the interface's network, or an
	// Ethernet address. Tests that send nothing of their own need none.
	Peer  string
	Tests []Test // of InterfaceTests()
	// Sizes of the frames that are sent, in bytes, 64 to 1514. Frames that come in count
	// as they are.
	Sizes []int
	// Pace limits what is sent, in frames a second on all queues together: 0 is no limit.
	Pace float64
	// Queues to use: nil is all.
	Queues []int
	// Force takes an interface that the machine's default route goes through, too.
	Force bool

	Rounds   int
	Duration time.Duration // of one round
	WarmUp   time.Duration // before the rounds of a test
	Progress experiment.Progress
	Sending  func(Interface) // called before the first frame is sent; may be nil
}

// Interface is what was measured instead of a veth pair.
type Interface struct {
	Name   string `json:"name"`
	Driver string `json:"driver"` // "" if unknown
	// Peer is the Ethernet address that frames were sent to; absent if none were.
	Peer string `json:"peer,omitempty"`
	// Queues are those with a socket.
	Queues []int `json:"queues"`
	// ZeroCopy is whether all sockets were in zero-copy mode, as read back from the kernel.
	ZeroCopy bool `json:"zero_copy"`
	// Pace is the limit in frames a second; absent if there was none.
	Pace float64 `json:"pace,omitempty"`
}

// Bucket is a bar of a histogram.
type Bucket struct {
	UpTo  uint64 `json:"up_to_ns"` // the largest that counts; what is beyond the bucket before
	Count uint64 `json:"count"`
}

// histogram counts times in nanoseconds in buckets up to 1, 2 and 5 times a power of ten.
// The first and the last bucket that it returns are not empty.
func histogram(times []uint32) (buckets []Bucket) {
	slices.Sort(times)
	for up, i := uint64(1000), 0; len(times) > 0; i++ {
		n := sort.Search(len(times), func(i int) bool { return uint64(times[i]) > up })
		if n > 0 || buckets != nil {
			buckets = append(buckets, Bucket{UpTo: up, Count: uint64(n)})
		}
		times = times[n:]
		up = []uint64{up * 2, up / 2 * 5, up * 2}[i%3]
	}
	return buckets
}

func (c *InterfaceConfig) checkFields() error {
	err := experiment.Check("engine",
		experiment.Known("measure", InterfaceTests(), c.Tests...),
		experiment.InRange("sizes", minSize, maxPlain, c.Sizes...),
		experiment.InRange("pace", 0, 1e9, c.Pace),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("duration", 10*time.Millisecond, time.Hour, c.Duration),
		experiment.InRange("warm-up", 0, time.Minute, c.WarmUp),
	)
	switch {
	case err != nil:
		return err
	case c.Interface == "":
		return &experiment.ConfigError{Field: "interface", Problem: "the name is empty"}
	case c.sends() && c.Peer == "":
		return &experiment.ConfigError{Field: "peer", Problem: "transmit and request-response send frames: to which address?"}
	case c.Peer == "":
		return nil
	}
	_, _, err = c.peer()
	return err
}

// InterfaceDefaults returns the configuration of a measurement in which the other machine
// need not take part; Interface and Peer are missing.
func InterfaceDefaults() InterfaceConfig {
	d := Defaults()
	return InterfaceConfig{
		Tests: []Test{Transmit}, Sizes: []int{minSize, minHot, 512, maxHot}, Rounds: d.Rounds, Duration: d.Duration,
		WarmUp: d.WarmUp,
	}
}

// sends reports whether tests send frames of their own, rather than answer what comes.
func (c *InterfaceConfig) sends() bool {
	return slices.Contains(c.Tests, Transmit) || slices.Contains(c.Tests, RequestResponse)
}

// peer parses Peer: one of ip and mac is set.
func (c *InterfaceConfig) peer() (ip netip.Addr, mac net.HardwareAddr, err error) {
	if ip, err := netip.ParseAddr(c.Peer); err == nil {
		if ip = ip.Unmap(); !ip.Is4() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
			return ip, nil, &experiment.ConfigError{Field: "peer", Problem: c.Peer +
				" is not the IPv4 address of another machine"}
		}
		return ip, nil, nil
	}
	mac, err = net.ParseMAC(c.Peer)
	if err != nil || len(mac) != 6 {
		return ip, nil, &experiment.ConfigError{Field: "peer", Problem: c.Peer +
			" is neither an IPv4 nor an Ethernet address"}
	}
	if mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return ip, nil, &experiment.ConfigError{Field: "peer", Problem: c.Peer +
			" is not the Ethernet address of one other card"}
	}
	return ip, mac, nil
}
