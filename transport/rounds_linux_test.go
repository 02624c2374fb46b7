package transport

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
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

// TestReduceBackendsInteroperate has a worker on kernel sockets, which do not
// hear what the XDP program sends to all, and one on AF_XDP.
func TestReduceBackendsInteroperate(t *testing.T) {
	o := synchronous(clusterOptions{workers: 2, stripes: 10})
	f, bed := xdpFabric(t, o, 1)
	afxdpLink := f.link
	f.link = func(host int) Link {
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
func kernelLink(t testing.TB, h *testbed.Node) Link {
	t.Helper()
	// A veth end gets frames that its peer's program sends back only if it
	// has a program, too: this one lets everything pass.
	idle, err := bpf.OpenSteer(bpf.SteerOptions{Interface: h.Interface, Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { idle.Close() })
	l, err := OpenUDP(netip.AddrPortFrom(h.IP, wire.DefaultPort))
	if err != nil {
		t.Fatal(err)
	}
	// The aggregator also checks the Ethernet address of a sender.
	return &macLink{l, [6]byte(h.MAC)}
}

// TestJoin checks that a link takes frames to its job's group, to no other, and
// that the interface's membership ends with the link.
func TestJoin(t *testing.T) {
	const job = 0x0107
	bed := newBed(t, testbed.Config{Hosts: 2})
	in := func(host int, fn func()) {
		if err := bed.Host(host).Do(func() error { fn(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	member := func() (is bool) {
		in(0, func() {
			list, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
			if err != nil {
				t.Fatal(err)
			}
			is = strings.Contains(string(list), "01005e4c0107")
		})
		return is
	}
	var link Link
	in(0, func() {
		var err error
		if link, err = OpenAFXDP(AFXDPConfig{Interface: bed.Host(0).Interface, Local: netip.AddrPortFrom(bed.Host(0).IP, wire.DefaultPort)}); err != nil {
			t.Fatal(err)
		}
		if member() {
			t.Error("the interface is in the group before Join")
		}
		for range 2 {
			if err := link.Join(job); err != nil {
				t.Fatal(err)
			}
		}
		if err := link.Join(job + 1); err == nil {
			t.Error("a second job was joined")
		}
	})
	if !member() {
		t.Error("the interface is not in the group")
	}
	from := wire.Endpoint{MAC: [6]byte(bed.Host(1).MAC), IP: bed.Host(1).IP, Port: wire.DefaultPort}
	in(1, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for i, id := range []uint16{job + 1, job} {
			e, err := wire.NewEnvelope(from, wire.AllOf(id, wire.DefaultPort))
			if err != nil {
				t.Fatal(err)
			}
			frame := make([]byte, e.Len()+wire.ScaleLen)
			wire.Header{Type: wire.TypeAck, Seq: uint32(i)}.Put(frame[e.Len():])
			e.Seal(frame)
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: bed.Host(1).Index}); err != nil {
				t.Fatal(err)
			}
		}
	})
	pkts := make([]Packet, 8)
	ctx := deadline(t)
	for n := 0; n == 0; {
		var err error
		if n, err = link.Receive(pkts); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatal("the frame to the group did not arrive")
		}
		if n == 0 {
			if err := link.Wait(10 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	if h, err := wire.ParseHeader(pkts[0].Payload); err != nil || h.Seq != 1 {
		t.Errorf("received %+v, %v", h, err)
	}
	if s := link.Stats(); s.Foreign != 1 || s.Received != 1 {
		t.Errorf("%+v, want one frame and one foreign one", s)
	}
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if member() {
		t.Error("the interface is still in the group")
	}
}
