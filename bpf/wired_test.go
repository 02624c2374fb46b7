//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/afxdp/testbed"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

// wired is the program on the ports of a switch: frames go to it over veth, and
// what it sends comes back over veth. Host i is behind port i.
type wired struct {
	*Aggregator
	hosts []*host
}

var _ conformance.Device = (*wired)(nil)

// openWired attaches an aggregator to n ports. It must be called in their
// namespace.
func openWired(t *testing.T, n, queues int) *wired {
	t.Helper()
	w := &wired{Aggregator: open(t).Aggregator}
	for i := range n {
		if err := w.Attach(fmt.Sprintf("port%d", i), afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		w.hosts = append(w.hosts, openHost(t, fmt.Sprintf("host%d", i), queues))
	}
	return w
}

// Process gives a frame to the port of its sender and waits until something
// comes back or a counter says that nothing will.
func (w *wired) Process(frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	before, err := w.Counters()
	if err != nil {
		return v, 0, err
	}
	from := int(frame[11]) % len(w.hosts)
	if err := w.hosts[from].send(frame); err != nil {
		return v, 0, err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		after, err := w.Counters()
		if err != nil {
			return v, 0, err
		}
		silent := func(c aggregator.Counters) uint64 {
			return c.Truncated + c.BadChecksum + c.Short + c.Unexpected + c.Unanswered
		}
		switch {
		case after.Passed != before.Passed:
			return aggregator.Verdict{Action: aggregator.Pass}, 0, nil
		case silent(after) != silent(before):
			return aggregator.Verdict{Action: aggregator.Drop}, 0, nil
		}
		for i, h := range w.hosts {
			got, err := h.receive()
			if err != nil {
				return v, 0, err
			}
			if got == nil {
				continue
			}
			switch {
			case after.Forwarded != before.Forwarded:
				if !bytes.Equal(got, frame) {
					return v, 0, fmt.Errorf("frame %x was forwarded as %x", frame, got)
				}
				return aggregator.Verdict{Action: aggregator.Forward, Port: -1}, 0, nil
			case isBroadcast(got):
				return broadcastOf(got), copy(reply, got), w.expectOthers(i, got, deadline)
			case i != from:
				return v, 0, fmt.Errorf("frame %x came from port %d, its answer %x went to port %d", frame, from, got, i)
			}
			return aggregator.Verdict{Action: aggregator.Reply}, copy(reply, got), nil
		}
	}
	return v, 0, fmt.Errorf("nothing came of frame %x", frame)
}

// expectOthers checks that all hosts but one receive a frame.
func (w *wired) expectOthers(but int, frame []byte, deadline time.Time) error {
	for i, h := range w.hosts {
		if i == but {
			continue
		}
		got, err := h.wait(deadline)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, frame) {
			return fmt.Errorf("host %d received %x, others %x", i, got, frame)
		}
	}
	return nil
}

// isBroadcast tells whether a frame goes to all senders of a job.
func isBroadcast(frame []byte) bool {
	return bytes.HasPrefix(frame, []byte{0x01, 0x00, 0x5e, 76})
}

func broadcastOf(frame []byte) aggregator.Verdict {
	return aggregator.Verdict{Action: aggregator.Broadcast, Job: binary.BigEndian.Uint16(frame[4:])}
}

// Three ways lead to the same results: the model, single frames through the
// program, and this: the program on interfaces.
func TestAggregateOnInterfacesEqualsModel(t *testing.T) {
	inNetwork(t, conformance.Senders, testbed.VethConfig{MTU: 3000}, func() {
		w := openWired(t, conformance.Senders, 1)
		m := newModel(t)
		for _, p := range []aggregator.Plane{w, m} {
			if err := conformance.Setup(p); err != nil {
				t.Fatal(err)
			}
		}
		err := errors.Join(
			w.AddRoute(conformance.Routed.MAC, "port2"),
			m.AddRoute(conformance.Routed.MAC, 1),
		)
		if err != nil {
			t.Fatal(err)
		}
		p := &conformance.Pair{Device: w, Model: m}
		g := conformance.NewGenerator(21)
		for i := range 5000 {
			frame := g.Frame()
			if len(frame) < 70 {
				continue // veth has no room behind it for a longer answer
			}
			if _, err := p.Process(frame); err != nil {
				t.Fatalf("frame %d: %v", i, err)
			}
		}
		for _, j := range conformance.Jobs {
			if err := p.Harvest(j.ID); err != nil {
				t.Error(err)
			}
		}
		if err := p.CompareCounters(); err != nil {
			t.Error(err)
		}
	})
}
