// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// mute is a cluster whose worker's peers are there but never answer.
func mute(t *testing.T, flow retransmit.Config) (*Worker, *memLink) {
	network := newMemNet()
	network.open("10.0.0.1:19522")
	server := network.open("10.0.0.2:19522")
	l := network.open("10.0.0.3:19522")
	w, err := NewWorker(t.Context(), WorkerConfig{
		Link: l, Job: testJob, Sender: 1, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch, HotSet: testHotSet(t), Flow: flow,
		Aggregator: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 19522}, Server: server.local,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, server
}

func TestSilentPeer(t *testing.T) {
	ctx := deadline(t)
	w, _ := mute(t, retransmit.Config{Silence: 50 * time.Millisecond})
	keys, grads := batch(rand.New(rand.NewPCG(1, 1)), 500)
	ticket, err := w.Push(ctx, keys, grads)
	if err != nil {
		t.Fatal(err)
	}
	err = ticket.Wait(ctx)
	var push *PushError
	var peer *PeerError
	var silent *retransmit.SilentPeerError
	if !errors.As(err, &push) || !errors.As(err, &peer) || !errors.As(err, &silent) {
		t.Fatalf("error %v, want a PushError of a PeerError of a SilentPeerError", err)
	}
	if push.Acked != 0 || push.Unacked == 0 || !push.Complete || push.Unacked != push.Sent.HotFrames+push.Sent.ColdFrames {
		t.Errorf("%+v", push)
	}
	t.Log(err)
	<-w.Done()
	// Every later call fails for the same reason.
	_, errPush := w.Push(ctx, keys, grads)
	for name, err := range map[string]error{
		"push": errPush, "flush": w.Flush(ctx), "pull": w.Pull(ctx, keys, grads), "close": w.Close(), "err": w.Err(),
	} {
		if !errors.As(err, &silent) {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
	if s, err := w.Stats(ctx); err != nil || s.Cold.Retransmitted == 0 {
		t.Errorf("stats of an ended worker: %+v, %v", s, err)
	}
}

// blocked are the calls that wait for a peer. Their keys are cold and need more frames than a
// window of 16.
func blocked(w *Worker) map[string]func(context.Context) error {
	keys := make([]uint64, 10_000)
	values, sums := make([]float32, len(keys)*testDim), make([]float32, len(keys)*testDim)
	return map[string]func(context.Context) error{
		"push":    func(ctx context.Context) error { _, err := w.Push(ctx, keys, values); return err },
		"pull":    func(ctx context.Context) error { return w.Pull(ctx, keys, sums) },
		"pushsum": func(ctx context.Context) error { return w.PushSum(ctx, keys[:5], values[:15], sums[:15]) },
		"flush":   func(ctx context.Context) error { return w.Flush(ctx) },
		"ticket": func(ctx context.Context) error {
			ticket, err := w.Push(ctx, keys[:5], values[:15])
			if err != nil {
				return err
			}
			return ticket.Wait(ctx)
		},
	}
}

// TestCancel cancels blocked calls, and then lets the peer answer.
func TestCancel(t *testing.T) {
	for _, first := range []string{"push", "pull", "pushsum", "flush", "ticket"} {
		t.Run(first, func(t *testing.T) {
			w, server := mute(t, retransmit.Config{Size: 16, Silence: time.Hour})
			calls := blocked(w)
			if first == "flush" { // something to wait for
				if _, err := w.Push(deadline(t), []uint64{1}, make([]float32, testDim)); err != nil {
					t.Fatal(err)
				}
			}
			// The others queue after the first blocked one.
			for i, name := range []string{first, "push", "pull"} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				err := calls[name](ctx)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("call %d, %s: error %v, want the context's", i, name, err)
				}
			}
			ctx := deadline(t)
			ledger := newLedger()
			s, err := NewServer(ServerConfig{Link: server, Job: testJob, Dim: testDim, Handler: ledger})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Admit(ctx, 1, w.link.Local().AddrPort(), testServerEpoch); err != nil {
				t.Fatal(err)
			}
			_ = w.Flush(ctx) // frames that came before the admission are refused
			keys, want := rowsOf(300)
			got := make([]float32, len(want))
			if err := w.Pull(ctx, keys, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// endsLate is a context that has ended only for callers that have begun to wait for it.
type endsLate struct {
	context.Context
	awaited bool
}

func (c *endsLate) Done() <-chan struct{} {
	c.awaited = true
	return c.Context.Done()
}

func (c *endsLate) Err() error {
	if !c.awaited {
		return nil
	}
	return c.Context.Err()
}

// A call that finds no room in a busy worker ends with its context, and does not concern the worker
// afterwards.
func TestCancelBeforeTheCallIsTaken(t *testing.T) {
	w, _ := mute(t, retransmit.Config{Size: 16, Silence: time.Hour})
	begun, busy := make(chan struct{}), make(chan struct{})
	post := func(fn func()) {
		if err := w.loop.Post(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	post(func() {
		close(begun)
		<-busy
	})
	<-begun
	for range endpoint.Backlog {
		post(func() {})
	}
	ended := make(chan error)
	calls := blocked(w)
	for _, name := range []string{"pull", "pushsum", "flush"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		go func() { ended <- calls[name](&endsLate{Context: ctx}) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v, want the context's", name, err)
			}
		case <-deadline(t).Done():
			close(busy)
			t.Fatalf("%s does not end", name)
		}
	}
	close(busy)
	if err := w.Do(deadline(t), func() {
		if slices.ContainsFunc(w.ops, func(o *operation) bool { return o != nil }) || len(w.flushes) > 0 {
			t.Errorf("the worker has operations %v and %d flushes", w.ops, len(w.flushes))
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestCancelledPushSaysHowFar checks the counts of a cancelled push.
func TestCancelledPushSaysHowFar(t *testing.T) {
	w, _ := mute(t, retransmit.Config{Size: 16, Silence: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var push *PushError
	if err := blocked(w)["push"](ctx); !errors.As(err, &push) {
		t.Fatalf("error %v, want a PushError", err)
	}
	if push.Complete || push.Unacked != 16 || push.Sent.ColdFrames != 16 || push.Acked != 0 {
		t.Errorf("%+v", push)
	}
}

func TestCloseWhileBlocked(t *testing.T) {
	w, _ := mute(t, retransmit.Config{Size: 16, Silence: time.Hour})
	var wg sync.WaitGroup
	for name, call := range blocked(w) {
		for range 2 {
			wg.Go(func() {
				if err := call(t.Context()); !errors.Is(err, net.ErrClosed) && (name != "flush" || err != nil) {
					t.Errorf("%s: error %v, want net.ErrClosed", name, err)
				}
			})
		}
	}
	// Wait until the loop has each kind of operation.
	for {
		pending := 0
		if err := w.Do(t.Context(), func() { pending = len(w.ops) }); err != nil {
			t.Fatal(err)
		}
		if pending >= 6 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if err := w.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("Err after Close: %v", err)
	}
}
