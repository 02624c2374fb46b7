// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// scripted has nothing to receive, then a frame within a look, then nothing for longer than one,
// and records sleeps.
type scripted struct {
	link.Link
	turns, waits int
	come         func(pkts []link.Packet) int
}

func (s *scripted) Receive(pkts []link.Packet) (int, error) {
	switch s.turns++; s.turns {
	case 1, 2:
		return 0, nil
	case 3:
		return s.come(pkts), nil
	case 4:
		time.Sleep(2 * endpoint.DefaultLook)
		return 0, nil
	case 5:
		return 0, nil
	}
	return 0, net.ErrClosed
}

func (s *scripted) Reply([]link.Packet) error { return nil }

func (s *scripted) Wait(time.Duration) error {
	s.waits++
	return nil
}

// A frame ends the look of a worker, which polls because of an unanswered frame, and the next one
// begins when there is none again, however long that took.
func TestWorkEndsALookOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPausable(t, time.Hour)
		p.push(2)
		s := &scripted{Link: p.link}
		s.come = func(pkts []link.Packet) int {
			h, err := wire.ParseHeader(p.server.inbox[0].Payload)
			if err != nil {
				t.Fatal(err)
			}
			pkts[0] = link.Packet{Packet: wire.Packet{Src: p.server.local, Payload: wire.PutAck(make([]byte, wire.HeaderLen), h)}}
			return 1
		}
		p.link = s
		if err := p.main(); !errors.Is(err, net.ErrClosed) || s.waits != 0 || p.flows[flowCold].window.Outstanding() == 0 {
			t.Errorf("%d sleeps, %v", s.waits, err)
		}
	})
}

// quiet is a link without traffic that counts sleeps.
type quiet struct {
	link.Link
	waits int
}

func (q *quiet) Wait(time.Duration) error {
	q.waits++
	return nil
}

// A worker polls for answers, that is while frames are unanswered, and not for its callers.
func TestWorkersLookForAnswers(t *testing.T) {
	q := &quiet{}
	w := &Worker{clock: clockFrom(time.Now())}
	w.initLoop(endpoint.Config{Link: q, Look: time.Hour})
	if err := w.sleep(); err != nil || q.waits != 1 {
		t.Errorf("with nothing to come: %d sleeps, %v", q.waits, err)
	}
	w.out = make([]link.Frame, 1)
	if err := w.sleep(); err != nil || q.waits != 1 {
		t.Errorf("with a frame to send: %d sleeps, %v", q.waits, err)
	}
	w.initLoop(endpoint.Config{Link: q, Look: -1})
	if err := w.sleep(); err != nil || q.waits != 2 {
		t.Errorf("without a look: %d sleeps, %v", q.waits, err)
	}
}

// An endpoint that polls for hours is as responsive as one that sleeps: it accepts submissions,
// repeats lost frames in time, and ends when it is closed.
func TestLooksThatDoNotEnd(t *testing.T) {
	ctx := deadline(t)
	for _, look := range []time.Duration{-1, 0, 1, time.Hour, 1<<63 - 1} {
		network := newMemNet()
		server, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:1"), Job: testJob, Dim: testDim, Handler: newLedger(), Look: look})
		if err != nil {
			t.Fatal(err)
		}
		on := network.open("10.0.0.2:1")
		w, err := NewWorker(ctx, WorkerConfig{
			Link: on, Job: testJob, Sender: 1, ServerEpoch: 1, Dim: testDim, Server: server.link.Local(), Look: look,
		})
		if err != nil {
			t.Fatal(err)
		}
		keys, want := rowsOf(10)
		got := make([]float32, len(want))
		p, err := w.BeginPull(ctx, keys, got)
		if err != nil {
			t.Fatal(err)
		}
		// It is refused or repeated until the server knows its sender.
		refusal := wire.Refusal{}
		if err := p(ctx); !errors.As(err, &refusal) {
			t.Fatal(err)
		}
		if err := server.Admit(ctx, 1, on.Local().AddrPort(), 1); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if err := w.Pull(ctx, keys, got); err != nil || !slices.Equal(got, want) {
				t.Fatalf("look %v: %v", look, err)
			}
			if _, err := server.Stats(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
		p, err = w.BeginPull(ctx, keys, got) // which has no answer
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- p(ctx) }()
		for last := time.Now().Add(eventLimit); ; {
			s, err := w.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s.Cold.Probes > 0 {
				break
			}
			if time.Now().After(last) {
				t.Fatalf("look %v: nothing is repeated", look)
			}
			time.Sleep(time.Millisecond)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("look %v: %v", look, err)
		}
	}
}
