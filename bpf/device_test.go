// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/telemetry"
)

// Both numbers are for every day: make conformance compares a million frames, and make exactly-once
// delivers ten million.
var (
	frames     = flag.Int("frames", 100_000, "number of random frames that the differential test compares")
	deliveries = flag.Int("deliveries", 100_000, "number of frames that the exactly-once test delivers")
)

// needPrivileges is the only reason to skip a test of this package.
func needPrivileges(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("loading XDP programs needs root")
	}
}

// device runs the program on single frames by the kernel's test-run facility,
// without any interface.
type device struct {
	*Aggregator
	out [4096]byte
	// ports are the indices of interfaces in the caller's namespace on which frames arrive. If
	// there are none, frames arrive on the loopback interface.
	ports []uint32
}

var _ conformance.Device = (*device)(nil)

// xdpContext is struct xdp_md of <linux/bpf.h>.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// testRunRoom is the number of bytes of a frame that a program sees in a test run: a page minus the
// kernel's headroom and struct skb_shared_info. The rest is a fragment.
const testRunRoom = 4096 - 256 - 320

// Values of enum xdp_action.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTx       = 3
	xdpRedirect = 4
)

func (d *device) Process(frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	return d.ProcessFrom(0, frame, reply)
}

func (d *device) ProcessFrom(port int, frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	opts := ebpf.RunOptions{Data: frame, DataOut: d.out[:]}
	if port < len(d.ports) {
		opts.Context = xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: d.ports[port]}
	}
	action, err := d.objects.Aggregate.Run(&opts)
	if err != nil {
		return v, 0, fmt.Errorf("test run: %w", err)
	}
	switch action {
	case xdpTx:
		return aggregator.Verdict{Action: aggregator.Reply}, copy(reply, opts.DataOut), nil
	case xdpDrop:
		return aggregator.Verdict{Action: aggregator.Drop}, 0, nil
	case xdpRedirect, xdpPass:
		if action == xdpRedirect && isBroadcast(opts.DataOut) && !isBroadcast(frame) {
			return broadcastOf(opts.DataOut), copy(reply, opts.DataOut), nil
		}
		if string(opts.DataOut) != string(frame) {
			return v, 0, fmt.Errorf("frame %x was passed on as %x", frame, opts.DataOut)
		}
		if action == xdpPass {
			return aggregator.Verdict{Action: aggregator.Pass}, 0, nil
		}
		return aggregator.Verdict{Action: aggregator.Forward, Port: -1}, 0, nil
	}
	return v, 0, fmt.Errorf("action %d", action)
}

var object = flag.String("object", "", "a compiled aggregate.c to test instead of the one that is built in")

// open loads the program for a test.
func open(tb testing.TB) *device {
	tb.Helper()
	return openWith(tb, Options{Address: conformance.Aggregator.IP, Budget: -1, Sample: telemetry.DefaultSample})
}

func openWith(tb testing.TB, o Options) *device {
	tb.Helper()
	needPrivileges(tb)
	spec, err := loadAggregate()
	if *object != "" {
		spec, err = ebpf.LoadCollectionSpec(*object)
	}
	if err != nil {
		tb.Fatal(err)
	}
	a, err := openSpec(spec, o)
	if err != nil {
		tb.Fatalf("%+v", err)
	}
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &device{Aggregator: a}
}

// forget removes all jobs and routes, and sets the counters to 0, as if the program had just been
// loaded. Loading takes the verifier half a second, so tests of many cases load it once.
func (d *device) forget(tb testing.TB) {
	tb.Helper()
	for id := range uint16(aggregator.MaxJobs) {
		if err := d.RemoveJob(id); err != nil && !errors.Is(err, aggregator.ErrNoJob) {
			tb.Fatal(err)
		}
	}
	for name, m := range map[string]*ebpf.Map{"routes": d.objects.Routes, "ports": d.objects.Ports} {
		var keys []any
		for all, key, value := m.Iterate(), make([]byte, m.KeySize()), make([]byte, m.ValueSize()); all.Next(&key, &value); {
			keys = append(keys, append([]byte(nil), key...))
		}
		for _, key := range keys {
			if err := m.Delete(key); err != nil {
				tb.Fatalf("%s: %v", name, err)
			}
		}
	}
	if err := d.objects.Counts.Put(uint32(0), make([]aggregateCounters, ebpf.MustPossibleCPU())); err != nil {
		tb.Fatal(err)
	}
	d.ports = nil
}

func newModel(tb testing.TB) *aggregator.Model {
	tb.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// openPair loads the program and configures it and a model equally. Frames arrive on the named
// interfaces, or, without any, on the loopback interface as port 0.
func openPair(tb testing.TB, ports ...string) *conformance.Pair {
	tb.Helper()
	d, m := open(tb), newModel(tb)
	d.usePorts(tb, ports...)
	for _, p := range []aggregator.Plane{d, m} {
		if err := conformance.Setup(p); err != nil {
			tb.Fatal(err)
		}
	}
	d.route(tb, conformance.Routes)
	for _, r := range conformance.Routes {
		if err := m.AddRoute(r.Host.MAC, r.Port); err != nil {
			tb.Fatal(err)
		}
	}
	return &conformance.Pair{Device: d, Model: m}
}

// route gives the program routes, by the numbers of d.ports; without any, port 0 is the loopback
// interface and other ports do not exist: a test run redirects nothing, so frames may be forwarded
// to any port.
func (d *device) route(tb testing.TB, routes []conformance.Route) {
	tb.Helper()
	const loopback = 1
	for _, r := range routes {
		index := uint32(loopback)
		switch {
		case r.Port < len(d.ports):
			index = d.ports[r.Port]
		case r.Port > 0:
			index = uint32(1000 + r.Port)
		}
		err := errors.Join(
			d.objects.Ports.Put(index, uint32(loopback)),
			d.objects.Routes.Put(routeKey(r.Host.MAC), index),
		)
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// usePorts makes frames arrive on interfaces of the caller's namespace. Then only the caller's
// thread can process them.
func (d *device) usePorts(tb testing.TB, names ...string) {
	tb.Helper()
	for _, name := range names {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			tb.Fatal(err)
		}
		d.ports = append(d.ports, uint32(ifi.Index))
	}
}
