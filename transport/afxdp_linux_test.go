package transport

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// xdpFabric is a switch with the XDP aggregator on every port and hosts with
// AF_XDP sockets: host 0 is the server's, host i worker i's.
func xdpFabric(t testing.TB, o clusterOptions, queues int) (fabric, *testbed.Bed) {
	t.Helper()
	bed := newBed(t, testbed.Config{Hosts: o.workers + 1, Queues: queues})
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
		link: func(host int) Link {
			h := bed.Host(host)
			l, err := OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
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

func newBed(t testing.TB, cfg testbed.Config) *testbed.Bed {
	t.Helper()
	bed, err := testbed.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	return bed
}

// TestExactSumsXDP is TestExactSums with the real data plane.
func TestExactSumsXDP(t *testing.T) {
	for _, c := range []struct {
		name    string
		queues  int
		options clusterOptions
	}{
		{"lane-aligned", 1, clusterOptions{workers: 3}},
		{"faults, dense", 1, clusterOptions{workers: 3, layout: packer.Dense, faults: harsh}},
		{"several queues", 2, clusterOptions{workers: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := xdpFabric(t, c.options, c.queues)
			checkExactSums(t, newCluster(t, f, c.options), c.options)
		})
	}
}
