// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// xdpFabric is a switch with the XDP aggregator on every port and hosts with
// AF_XDP sockets: host 0 is the server's, host i worker i's.
func xdpFabric(t testing.TB, o clusterOptions, queues int) (fabric, *testbed.Bed) {
	t.Helper()
	bed := bedtest.New(t, testbed.Config{Hosts: o.workers + 1, Queues: queues})
	agg, err := bpf.Open(bpf.Options{Address: bed.Switch().IP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agg.Close() })
	err = bed.Switch().Do(func() error {
		for _, h := range bed.Hosts() {
			if err := agg.Attach(h.PortName, afxdp.AttachNative); err != nil {
				return err
			}
			if err := agg.AddRoute([6]byte(h.MAC), h.PortName); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fabric{
		link: func(host int) link.Link {
			h := bed.Host(host)
			l, err := link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		in: func(host int, fn func()) {
			if err := bed.Host(host).Do(func() error { fn(); return nil }); err != nil {
				t.Fatal(err)
			}
		},
		plane:      agg,
		aggregator: wire.Endpoint{IP: bed.Switch().IP, Port: wire.DefaultPort},
	}, bed
}

// TestExactSumsXDP is TestExactSums with the real data plane.
func TestExactSumsXDP(t *testing.T) {
	for _, c := range []struct {
		name    string
		queues  int
		options clusterOptions
	}{
		{"lane-aligned", 1, clusterOptions{workers: 3}},
		{"faults, dense", 1, clusterOptions{workers: 3, layout: packer.Dense, flow: hasty, faults: harsh}},
		{"several queues", 2, clusterOptions{workers: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := xdpFabric(t, c.options, c.queues)
			checkExactSums(t, newCluster(t, f, c.options), c.options)
		})
	}
}

// TestBackendsInteroperate lets a worker on kernel sockets and one on AF_XDP push to the same XDP
// aggregator and the same server.
func TestBackendsInteroperate(t *testing.T) {
	o := clusterOptions{workers: 2}
	f, bed := xdpFabric(t, o, 1)
	afxdpLink := f.link
	f.link = func(host int) link.Link {
		if host != 2 {
			return afxdpLink(host)
		}
		return kernelLink(t, bed.Host(host))
	}
	checkExactSums(t, newCluster(t, f, o), o)
}

// macLink is a UDP link that knows the address of its interface.
type macLink struct {
	link.Link
	mac [6]byte
}

func (l *macLink) Local() wire.Endpoint {
	e := l.Link.Local()
	e.MAC = l.mac
	return e
}

// TestLinkDown takes the worker's interface down in the middle of a push.
func TestLinkDown(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, flow: retransmit.Config{Silence: time.Minute}}
	f, bed := xdpFabric(t, o, 1)
	c := newCluster(t, f, o)
	want := pushAll(ctx, t, c.workers, 1, 2, 500)
	carrier := func(up bool) {
		err := bed.Host(1).Do(func() error { return setUp(bed.Host(1).Interface, up) })
		if err != nil {
			t.Fatal(err)
		}
	}
	carrier(false)
	keys, grads := batch(rand.New(rand.NewPCG(9, 9)), 1000)
	ticket, err := c.workers[0].Push(ctx, keys, grads)
	if err != nil {
		t.Fatal(err)
	}
	// Long enough for a retransmission that cannot be sent.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := ticket.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a push over a dead interface: %v", err)
	}
	carrier(true)
	if err := ticket.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	pushed := newLedger()
	for key, row := range want {
		for c, units := range row {
			pushed.add(key, c, units)
		}
	}
	pushed.addBatch(keys, grads)
	if diff := cmp.Diff(withoutZeros(pushed.sums), c.sums()); diff != "" {
		t.Errorf("sums (-pushed +held):\n%.1000s", diff)
	}
}

func setUp(name string, up bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	flags := req.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	req.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

func BenchmarkAFXDP(b *testing.B) {
	f, _ := xdpFabric(b, clusterOptions{workers: 1}, 1)
	benchmarkLinks(b, f)
}
