// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// TestReduceXDP is TestReduce with the real data plane.
func TestReduceXDP(t *testing.T) {
	for _, c := range []struct {
		name    string
		queues  int
		options clusterOptions
		rounds  int
	}{
		{"exact", 1, clusterOptions{workers: 3, stripes: 10}, 40},
		{"several queues, faults, fixed", 2, clusterOptions{workers: 3, stripes: 2, faults: lagging, arithmetic: aggregator.Fixed, exp: -12}, 20},
		{"faults, negotiated", 1, clusterOptions{workers: 2, stripes: 2, faults: lagging, arithmetic: aggregator.Fixed, negotiate: true}, 20},
		{"faults, lut", 1, clusterOptions{workers: 2, stripes: 2, faults: lagging, arithmetic: aggregator.LUT}, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := synchronous(c.options)
			f, _ := xdpFabric(t, o, c.queues)
			cl := newCluster(t, f, o)
			checkSums(t, o, reduceAll(deadline(t), t, cl.workers, c.rounds))
			checkRounds(t, cl, o, c.rounds)
		})
	}
}

func BenchmarkReduceXDP(b *testing.B) {
	o := reduceOptions(b, aggregator.Fixed)
	f, _ := xdpFabric(b, o, 1)
	benchmarkReduce(b, f, o)
}

// TestReduceBackendsInteroperate has a worker on kernel sockets, which do not receive the XDP
// program's frames to all, and one on AF_XDP.
func TestReduceBackendsInteroperate(t *testing.T) {
	o := synchronous(clusterOptions{workers: 2, stripes: 10})
	f, bed := xdpFabric(t, o, 1)
	afxdpLink := f.link
	f.link = func(host int) link.Link {
		if host == 2 {
			return kernelLink(t, bed.Host(host))
		}
		return afxdpLink(host)
	}
	c := newCluster(t, f, o)
	checkSums(t, o, reduceAll(deadline(t), t, c.workers, 5))
	checkRounds(t, c, o, 5)
}

// kernelLink opens a UDP link in a host of a bed.
func kernelLink(t testing.TB, h *testbed.Node) link.Link {
	t.Helper()
	// A veth end receives frames that its peer's program sends back only if it also has a program:
	// this one passes everything.
	idle, err := afxdp.Attach(afxdp.AttachConfig{Interface: h.Interface, Match: afxdp.MatchUDP(9)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { idle.Close() })
	l, err := link.OpenUDP(netip.AddrPortFrom(h.IP, wire.DefaultPort))
	if err != nil {
		t.Fatal(err)
	}
	// The aggregator also checks the Ethernet address of a sender.
	return &macLink{l, [6]byte(h.MAC)}
}
