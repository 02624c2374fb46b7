//go:build linux

package bpf

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

var frames = flag.Int("frames", defaultFrames, "number of random frames that the differential test compares")

// needPrivileges is the one reason why a test of this package is skipped.
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
}

var _ conformance.Device = (*device)(nil)

// Values of enum xdp_action.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTx       = 3
	xdpRedirect = 4
)

func (d *device) Process(frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	opts := ebpf.RunOptions{Data: frame, DataOut: d.out[:]}
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

// open loads the program for a test.
func open(tb testing.TB) *device {
	tb.Helper()
	needPrivileges(tb)
	a, err := Open(Options{Address: conformance.Aggregator.IP})
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

func newModel(tb testing.TB) *aggregator.Model {
	tb.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// openPair loads the program and sets it and a model up alike.
func openPair(tb testing.TB) *conformance.Pair {
	tb.Helper()
	d, m := open(tb), newModel(tb)
	for _, p := range []aggregator.Plane{d, m} {
		if err := conformance.Setup(p); err != nil {
			tb.Fatal(err)
		}
	}
	if err := d.AddRoute(conformance.Routed.MAC, "lo"); err != nil {
		tb.Fatal(err)
	}
	if err := m.AddRoute(conformance.Routed.MAC, 1); err != nil {
		tb.Fatal(err)
	}
	return &conformance.Pair{Device: d, Model: m}
}
