// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// wired is the program on the ports of a switch: frames go to it and come back over veth. Host i is
// behind port i.
type wired struct {
	*Aggregator
	hosts []*host
}

var _ conformance.Device = (*wired)(nil)

// openWired attaches an aggregator to n ports. It must be called in their
// namespace.
func openWired(t *testing.T, n, queues int, mode afxdp.AttachMode) *wired {
	t.Helper()
	w := &wired{Aggregator: open(t).Aggregator}
	for i := range n {
		if err := w.Attach(fmt.Sprintf("port%d", i), mode); err != nil {
			t.Fatal(err)
		}
		w.hosts = append(w.hosts, openHost(t, fmt.Sprintf("host%d", i), queues))
	}
	return w
}

// ProcessFrom gives a frame to a port and waits until a frame comes back or a counter shows that
// none will.
func (w *wired) ProcessFrom(from int, frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	before, err := w.Counters()
	if err != nil {
		return v, 0, err
	}
	if err := w.hosts[from].send(frame); err != nil {
		return v, 0, err
	}
	for deadline := time.Now().Add(eventLimit); time.Now().Before(deadline); {
		after, err := w.Counters()
		if err != nil {
			return v, 0, err
		}
		silent := func(c aggregator.Counters) uint64 {
			return c.Truncated + c.BadChecksum + c.PartialChecksum + c.Short + c.Unexpected + c.Unanswered + c.OutOfBounds
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

// isBroadcast returns whether a frame goes to all senders of a job.
func isBroadcast(frame []byte) bool {
	return bytes.HasPrefix(frame, []byte{0x01, 0x00, 0x5e, 76})
}

// isQuiet returns whether a frame may remain without an answer.
func isQuiet(frame []byte) bool {
	p, err := wire.ParseFrame(frame, 0)
	return err == nil && len(p.Payload) > 1 && wire.Flags(p.Payload[1])&wire.FlagQuiet != 0
}

func broadcastOf(frame []byte) aggregator.Verdict {
	return aggregator.Verdict{Action: aggregator.Broadcast, Job: binary.BigEndian.Uint16(frame[4:])}
}

// The program on interfaces gives the same results as the model and as single frames through the
// program.
func TestAggregateOnInterfacesEqualsModel(t *testing.T) {
	inNetwork(t, 2, testbed.VethConfig{MTU: 3500}, func() { // the frames of a generator have at most 3514 bytes
		w := openWired(t, 2, 1, afxdp.AttachNative)
		m := newModel(t)
		for _, p := range []aggregator.Plane{w, m} {
			if err := conformance.Setup(p); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range conformance.Routes {
			err := errors.Join(w.AddRoute(r.Host.MAC, fmt.Sprintf("port%d", r.Port)), m.AddRoute(r.Host.MAC, r.Port))
			if err != nil {
				t.Fatal(err)
			}
		}
		p := &conformance.Pair{Device: w, Model: m}
		g := conformance.NewGenerator(21)
		for i := range 5000 {
			frame := g.Frame()
			if len(frame) < 70 || isQuiet(frame) {
				continue // veth has no room for a longer answer; there is no sign of a quiet frame
			}
			if _, err := p.ProcessFrom(g.Port(), frame); err != nil {
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

// pusher is a host that pushes frames of a combine job, all through several
// queues, some twice, with foreign packets and frames for another host in
// between.
type pusher struct {
	*host
	frames      [][]byte // with sequence numbers from wire.FirstSeq on
	others      [][]byte
	unanswered  map[uint32]time.Time
	sentForeign int
}

func (p *pusher) run() error {
	const window, patience = 32, 50 * time.Millisecond
	p.unanswered = make(map[uint32]time.Time)
	deadline := time.Now().Add(eventLimit)
	for next := 0; next < len(p.frames) || len(p.unanswered) > 0; {
		for next < len(p.frames) && len(p.unanswered) < window {
			copies := 1 + next%4/3
			for range copies {
				if err := p.push(uint32(wire.FirstSeq + next)); err != nil {
					return err
				}
			}
			if next%8 == 0 {
				if err := p.send(p.others[p.sentForeign%len(p.others)]); err != nil {
					return err
				}
				p.sentForeign++
			}
			next++
		}
		frame, err := p.wait(time.Now().Add(patience))
		if err != nil {
			return err
		}
		if frame != nil {
			if err := p.take(frame); err != nil {
				return err
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("frames without an answer: %v", p.unanswered)
		}
		for seq, sent := range p.unanswered {
			if time.Since(sent) > patience {
				if err := p.push(seq); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *pusher) push(seq uint32) error {
	p.unanswered[seq] = time.Now()
	return p.send(p.frames[seq-wire.FirstSeq])
}

func (p *pusher) take(frame []byte) error {
	parsed, err := wire.ParseFrame(frame, wire.DefaultPort)
	if err != nil {
		return fmt.Errorf("frame %x: %w", frame, err)
	}
	h, err := wire.ParseHeader(parsed.Payload)
	switch {
	case err != nil:
		return fmt.Errorf("frame %x: %w", frame, err)
	case h.Type == wire.TypeAck:
		delete(p.unanswered, h.Seq)
	case h.Type != wire.TypeCold: // that is forwarded to this host
		return fmt.Errorf("frame %x is no ACK", frame)
	}
	return nil
}

// Senders on three ports with two queues each push on all CPUs at once, so the program runs on
// several CPUs at once too. Its sums equal those of the model for the same frames one by one.
func TestPortsAndQueuesAtOnce(t *testing.T) {
	const queues, each = 2, 1000
	job := aggregator.JobConfig{ID: 40, Epoch: 9, Exp: -46, Slots: 300, MaxStripes: wire.MaxStripes}
	inNetwork(t, conformance.Senders, testbed.VethConfig{Queues: queues, MTU: wire.MaxMTU}, func() {
		w, m := openWired(t, conformance.Senders, queues, afxdp.AttachNative), newModel(t)
		for _, p := range []aggregator.Plane{w, m} {
			if err := conformance.StartJob(p, job); err != nil {
				t.Fatal(err)
			}
		}
		rng := rand.New(rand.NewPCG(41, 42))
		reply := make([]byte, aggregator.MaxReply)
		pushers := make([]*pusher, conformance.Senders)
		for i := range pushers {
			p := &pusher{host: w.hosts[i]}
			for k := range each {
				frame := denseFrame(t, rng, i, job, uint32(wire.FirstSeq+k), 0, 1+rng.IntN(wire.MaxStripes), job.Slots,
					func() float32 { return float32(rng.NormFloat64()) })
				p.frames = append(p.frames, frame)
				if v, _ := m.Process(frame, reply); v.Action != aggregator.Reply {
					t.Fatalf("the model's verdict is %v", v)
				}
			}
			another := (i + 1) % conformance.Senders
			if err := w.AddRoute(conformance.Host(another).MAC, fmt.Sprintf("port%d", another)); err != nil {
				t.Fatal(err)
			}
			p.others = [][]byte{
				between(t, conformance.Host(i), conformance.Host(another)),
				between(t, conformance.Host(i), wire.Endpoint{IP: conformance.Aggregator.IP, Port: 53}),
			}
			pushers[i] = p
		}
		onAllCPUs(t, len(pushers), func(i int) error { return pushers[i].run() })
		want, err := m.Swap(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.Swap(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Frames != want.Frames || got.Pairs != want.Pairs || !slices.Equal(got.Slots, want.Slots) {
			t.Errorf("%d frames with %d pairs were added, want %d with %d, or the sums differ",
				got.Frames, got.Pairs, want.Frames, want.Pairs)
		}
		c, err := w.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if c.Forwarded == 0 || c.Passed == 0 {
			t.Errorf("%d frames forwarded, %d passed", c.Forwarded, c.Passed)
		}
	})
}
