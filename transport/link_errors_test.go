// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

var errLink = errors.New("the link is broken")

// failingLink fails in one of its methods from some moment on, and counts calls.
type failingLink struct {
	link.Link
	receive, reply, send, resend, wait, close atomic.Bool
	received, waited                          atomic.Int64
}

func (l *failingLink) Receive(p []link.Packet) (int, error) {
	l.received.Add(1)
	if l.receive.Load() {
		return 0, errLink
	}
	return l.Link.Receive(p)
}

func (l *failingLink) Reply(p []link.Packet) error {
	if l.reply.Load() {
		return errLink
	}
	return l.Link.Reply(p)
}

func (l *failingLink) Send(frames []link.Frame) (int, error) {
	if l.send.Load() && !frames[0].Retx || l.resend.Load() && frames[0].Retx {
		return 0, errLink
	}
	return l.Link.Send(frames)
}

func (l *failingLink) Wait(limit time.Duration) error {
	l.waited.Add(1)
	if l.wait.Load() {
		return errLink
	}
	return l.Link.Wait(limit)
}

func (l *failingLink) Close() error {
	if err := l.Link.Close(); err != nil || !l.close.Load() {
		return err
	}
	return errLink
}

// failingWorker is a worker whose server never answers.
func failingWorker(t *testing.T) (*Worker, *failingLink) {
	t.Helper()
	network := newMemNet()
	server := network.open("10.0.0.2:19522")
	l := &failingLink{Link: network.open("10.0.0.3:19522")}
	w, err := NewWorker(t.Context(), WorkerConfig{
		Link: l, Job: testJob, Sender: 1, ServerEpoch: testServerEpoch, Dim: testDim, Server: server.Local(), Flow: retransmit.Config{Silence: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, l
}

// TestLinkErrorsEndTheWorker lets the link fail at each place where a worker uses it: the worker
// ends, and the tickets of its pushes have the reason.
func TestLinkErrorsEndTheWorker(t *testing.T) {
	for name, fail := range map[string]func(*failingLink) *atomic.Bool{
		"receive": func(l *failingLink) *atomic.Bool { return &l.receive },
		"send":    func(l *failingLink) *atomic.Bool { return &l.send },
		"resend":  func(l *failingLink) *atomic.Bool { return &l.resend },
		"wait":    func(l *failingLink) *atomic.Bool { return &l.wait },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			w, l := failingWorker(t)
			fail(l).Store(true)
			ticket, err := w.Push(ctx, []uint64{1}, make([]float32, testDim))
			if err == nil {
				err = ticket.Wait(ctx)
			}
			if !errors.Is(err, errLink) {
				t.Errorf("push: %v, want the link's error", err)
			}
			select {
			case <-w.Done():
			case <-ctx.Done():
				t.Fatal("the worker goes on")
			}
			if err := w.Close(); !errors.Is(err, errLink) || !errors.Is(w.Err(), errLink) {
				t.Errorf("Close: %v, Err: %v; want the link's error", err, w.Err())
			}
		})
	}
}

// TestLinkErrorsEndTheServer lets the link fail at each place where a server uses it: the server
// ends, and returns the reason.
func TestLinkErrorsEndTheServer(t *testing.T) {
	for name, fail := range map[string]func(*failingLink) *atomic.Bool{
		"receive": func(l *failingLink) *atomic.Bool { return &l.receive },
		"reply":   func(l *failingLink) *atomic.Bool { return &l.reply },
		"send":    func(l *failingLink) *atomic.Bool { return &l.send },
		"wait":    func(l *failingLink) *atomic.Bool { return &l.wait },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, network := deadline(t), newMemNet()
			l, client := &failingLink{Link: network.open("10.0.0.2:19522")}, network.open("10.0.0.3:19522")
			var s *Server
			s, err := NewServer(ServerConfig{
				Link: l, Job: testJob, Dim: testDim, Handler: discard{},
				Arrive: func(_, _ uint16, end wire.StepEnd) bool {
					s.GiveSums(end.Step, []uint64{1}, make([]float32, testDim)) // sends
					return true
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Admit(ctx, 1, client.local.AddrPort(), testServerEpoch); err != nil {
				t.Fatal(err)
			}
			fail(l).Store(true)
			client.deliver(stepOf(wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: wire.FirstSeq}), l.Local())
			select {
			case <-s.Done():
			case <-ctx.Done():
				t.Fatal("the server goes on")
			}
			if err := s.Close(); !errors.Is(err, errLink) || !errors.Is(s.Err(), errLink) {
				t.Errorf("Close: %v, Err: %v; want the link's error", err, s.Err())
			}
		})
	}
}

// TestCloseReportsTheLink returns the error of closing the link.
func TestCloseReportsTheLink(t *testing.T) {
	w, l := failingWorker(t)
	l.close.Store(true)
	if err := w.Close(); err != nil && !errors.Is(err, errLink) {
		t.Errorf("Close: %v", err)
	}
	if err := w.Err(); !errors.Is(err, ErrClosed) || !errors.Is(err, errLink) {
		t.Errorf("Err: %v, want ErrClosed and the link's error", err)
	}
}

// TestIdleWorkerWaits counts the calls of an idle worker: it sleeps until it is woken, instead of
// polling.
func TestIdleWorkerWaits(t *testing.T) {
	w, l := failingWorker(t)
	if err := w.Do(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	for ctx := deadline(t); l.waited.Load() == 0 && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if received, waited := l.received.Load(), l.waited.Load(); waited == 0 || received > 20 {
		t.Errorf("an idle worker has looked %d times for answers and waited %d times", received, waited)
	}
}

// TestNegativeRoundLimit checks that it is refused, before the worker joins its job.
func TestNegativeRoundLimit(t *testing.T) {
	cfg := roundsConfig(t, newMemNet(), retransmit.Config{})
	cfg.RoundLimit = -1
	if w, err := makeWorker(t.Context(), cfg); !errors.Is(err, ErrConfig) || w != nil {
		t.Errorf("error %v, want ErrConfig", err)
	}
}

// TestServerBounds starts servers with the longest row that fits, and one beyond, and admits
// senders with incomplete addresses.
func TestServerBounds(t *testing.T) {
	l := newMemNet().open("10.0.0.2:19522")
	longest := 0
	for wire.ColdCap(l.Limits().MaxPayload, longest+1) > 0 {
		longest++
	}
	for dim, good := range map[int]bool{-1: false, 0: false, 1: true, longest: true, longest + 1: false} {
		s, err := NewServer(ServerConfig{Link: newMemNet().open("10.0.0.2:19522"), Job: testJob, Dim: dim, Handler: discard{}})
		if (err == nil) != good || err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("rows of %d floats, of at most %d: %v", dim, longest, err)
		}
		if s == nil {
			continue
		}
		for from, good := range map[netip.AddrPort]bool{
			{}:                                  false,
			netip.AddrPortFrom(netip.Addr{}, 5): false,
			netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), 0):          false,
			netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.0.0.3"), 5):   true,
			netip.AddrPortFrom(netip.MustParseAddr("fe80::1%nowhere"), 500): true,
		} {
			if err := s.Admit(t.Context(), from.Port(), from, 1); (err == nil) != good || err != nil && !errors.Is(err, ErrConfig) {
				t.Errorf("admission from %v: %v", from, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLastStatsHaveTheLinks checks that the counters of a server that has ended include those of
// its link.
func TestLastStatsHaveTheLinks(t *testing.T) {
	network := newMemNet()
	s, err := NewServer(ServerConfig{Link: network.open("10.0.0.2:19522"), Job: testJob, Dim: testDim, Handler: discard{}})
	if err != nil {
		t.Fatal(err)
	}
	client := network.open("10.0.0.3:19522")
	client.deliver(cold(wire.Header{Job: testJob, Sender: 1, Seq: wire.FirstSeq}, testDim, 1), s.link.Local())
	next(deadline(t), t, client) // it is refused
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	st, err := s.Stats(context.Background())
	if err != nil || st.Link.Sent != 1 || st.Refusals[wire.CodeUnknownSender] != 1 {
		t.Errorf("%+v, %v; want an answer sent", st, err)
	}
}
