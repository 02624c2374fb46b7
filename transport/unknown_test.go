// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// answerLoss is a link that loses its answers while it is enabled.
type answerLoss struct {
	link.Link
	on atomic.Bool
}

func (l *answerLoss) Reply(p []link.Packet) error {
	if l.on.Load() {
		return nil
	}
	return l.Link.Reply(p)
}

// TestRefusedButApplied applies frames and loses their ACKs before the peers refuse the
// repetitions: the push must not report that they are not applied.
func TestRefusedButApplied(t *testing.T) {
	row := []float32{1, 2, 3}
	for _, c := range []struct {
		name string
		key  uint64
		then func(*testing.T, *testCluster) error
		want wire.Code
	}{
		{"sender withdrawn", 77, func(t *testing.T, c *testCluster) error { return c.server.Remove(t.Context(), 1) }, wire.CodeUnknownSender},
		{"sender admitted anew", 77, func(t *testing.T, c *testCluster) error {
			at := c.workers[0].link.Local().AddrPort()
			return errors.Join(c.server.Remove(t.Context(), 1), c.server.Admit(t.Context(), 1, at, testServerEpoch+1))
		}, wire.CodeWrongEpoch},
		{"hot sender withdrawn", 1003, func(t *testing.T, c *testCluster) error { return c.plane.RemoveSender(testJob, 1) }, wire.CodeUnknownSender},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t)
			network := newMemNet()
			var lossy []*answerLoss
			o := clusterOptions{workers: 1}
			f := memFabricOn(t, network, func(l link.Link) link.Link {
				lossy = append(lossy, &answerLoss{Link: l})
				return lossy[len(lossy)-1]
			})
			cl := newCluster(t, f, o)
			for _, l := range lossy {
				l.on.Store(true)
			}
			w := cl.workers[0]
			ticket, err := w.Push(ctx, []uint64{c.key}, row)
			if err != nil {
				t.Fatal(err)
			}
			for repeated := uint64(0); repeated == 0; time.Sleep(time.Millisecond) {
				s, err := w.Stats(ctx)
				if err != nil {
					t.Fatal(err)
				}
				repeated = s.Hot.Retransmitted + s.Cold.Retransmitted
			}
			if err := c.then(t, cl); err != nil {
				t.Fatal(err)
			}
			for _, l := range lossy {
				l.on.Store(false)
			}
			err = ticket.Wait(ctx)
			var push *PushError
			if !errors.As(err, &push) || !errors.Is(err, wire.Refusal{Code: c.want}) {
				t.Fatalf("error %v, want a PushError: %v", err, c.want)
			}
			if push.Unknown != 1 || push.Refused != 0 || push.Acked != 0 || push.Unacked != 0 {
				t.Errorf("%+v; want one unknown frame", push)
			}
			want := newLedger()
			want.addBatch([]uint64{c.key}, row)
			if diff := cmp.Diff(want.sums, cl.sums()); diff != "" {
				t.Errorf("the frame was to be applied (-want +got):\n%s", diff)
			}
		})
	}
}

// memFabricOn is memFabric on a network of the test's; the links of aggregator
// and server are wrapped.
func memFabricOn(t testing.TB, network *memNet, wrap func(link.Link) link.Link) fabric {
	addr := []string{"10.0.0.9:19522", "10.0.0.10:19522", "10.0.0.11:19522", "10.0.0.12:19522"}
	return modelFabric(t, func(host int) link.Link {
		l := network.open(addr[host+1])
		if host <= 0 {
			return wrap(l)
		}
		return l
	})
}

// TestRefusalsOfRepeatedFrames answers frames that were sent once and repeated frames with every
// code, and checks the counts. It does not matter how often the worker has sent a frame, since the
// network may have copied it.
func TestRefusalsOfRepeatedFrames(t *testing.T) {
	depends := map[wire.Code]bool{ // on what the receiver does not know
		wire.CodeUnknownJob: true, wire.CodeUnknownSender: true, wire.CodeWrongEpoch: true, wire.CodeWindow: true, 999: true,
	}
	codes := []wire.Code{wire.CodeRowsFull, wire.CodeRowNumber, 999}
	for code := wire.CodeUnknownJob; code <= wire.CodeWindow; code++ {
		codes = append(codes, code)
	}
	for _, code := range codes {
		for _, repeated := range []bool{false, true} {
			ctx := deadline(t)
			flow := retransmit.Config{Silence: time.Hour, InitialRTO: time.Hour, MaxRTO: time.Hour}
			if repeated {
				flow = retransmit.Config{Silence: time.Hour}
			}
			w, server := mute(t, flow)
			ticket, err := w.Push(ctx, []uint64{1}, make([]float32, testDim))
			if err != nil {
				t.Fatal(err)
			}
			for retx := !repeated; ; {
				p := next(ctx, t, server)
				h, err := wire.ParseHeader(p.Payload)
				if err != nil {
					t.Fatal(err)
				}
				retx = retx || h.Flags&wire.FlagRetx != 0
				if retx {
					server.deliver(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: code}), w.link.Local())
					break
				}
			}
			err = ticket.Wait(ctx)
			var push *PushError
			var peer *PeerError
			if !errors.As(err, &push) || !errors.As(err, &peer) || !errors.Is(err, wire.Refusal{Code: code}) {
				t.Fatalf("%v: error %v", code, err)
			}
			unknown := depends[code]
			if (push.Unknown == 1) != unknown || push.Refused+push.Unknown != 1 || peer.Unknown != unknown {
				t.Errorf("%v, repeated %v: %+v", code, repeated, push)
			}
			if strings.Contains(err.Error(), "unknown whether it was applied") != unknown {
				t.Errorf("%v, repeated %v: %v", code, repeated, err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// next waits for a payload on a link that the test owns.
func next(ctx context.Context, t *testing.T, l *memLink) link.Packet {
	t.Helper()
	pkts := make([]link.Packet, 1)
	for ctx.Err() == nil {
		n, err := l.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return pkts[0]
		}
		if err := l.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing has come")
	return link.Packet{}
}

// TestPushErrorCountsEveryFrame has a push of which each frame ends differently.
func TestPushErrorCountsEveryFrame(t *testing.T) {
	ctx := deadline(t)
	w, server := mute(t, retransmit.Config{Size: 4, Silence: 300 * time.Millisecond})
	keys := make([]uint64, 4*wire.ColdCap(w.link.Limits().MaxPayload, testDim))
	for i := range keys {
		keys[i] = uint64(i)
	}
	ticket, err := w.Push(ctx, keys, make([]float32, len(keys)*testDim))
	if err != nil {
		t.Fatal(err)
	}
	answered := map[uint32]bool{}
	for len(answered) < 3 {
		h, err := wire.ParseHeader(next(ctx, t, server).Payload)
		if err != nil {
			t.Fatal(err)
		}
		var answer []byte
		switch {
		case answered[h.Seq]:
			continue
		case h.Seq == 1:
			answer = wire.PutAck(make([]byte, wire.HeaderLen), h)
		case h.Seq == 2:
			answer = wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeDimension})
		case h.Seq == 3 && h.Flags&wire.FlagRetx != 0:
			answer = wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeWrongEpoch})
		default:
			continue
		}
		answered[h.Seq] = true
		server.deliver(answer, w.link.Local())
	}
	err = ticket.Wait(ctx)
	var push *PushError
	if !errors.As(err, &push) {
		t.Fatalf("error %v, want a PushError", err)
	}
	want := PushError{Sent: packer.Sent{ColdFrames: 4, ColdRows: len(keys)}, Acked: 1, Refused: 1, Unknown: 1, Unacked: 1, Complete: true, Err: push.Err}
	if diff := cmp.Diff(want, *push, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if says := "4 frames: 1 acknowledged, 1 refused, 1 unknown, 1 unanswered"; !strings.Contains(err.Error(), says) {
		t.Errorf("%v; want it to say %q", err, says)
	}
}

// TestOverflowInASum is a refusal that a harvest ends: the same gradient is accepted afterwards.
func TestOverflowInASum(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	push := func() error {
		values := []float32{math.MaxInt16 * 3, 0, 0}
		ticket, err := c.workers[0].Push(ctx, []uint64{1003}, values)
		if err != nil {
			return err
		}
		return ticket.Wait(ctx)
	}
	if err := push(); err != nil {
		t.Fatal(err)
	}
	err := push()
	var e *PushError
	if !errors.As(err, &e) || !errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) || e.Refused+e.Unknown != 1 {
		t.Errorf("a sum of ±2^17 and more: %v", err)
	}
	if _, err := c.plane.Swap(testJob); err != nil {
		t.Fatal(err)
	}
	if err := push(); err != nil {
		t.Errorf("after a harvest: %v", err)
	}
}

// TestRefusalsOfNowhere are for pairs and rows that the frame does not have: the error names no
// key.
func TestRefusalsOfNowhere(t *testing.T) {
	for _, key := range []uint64{1003, 77} {
		w := idleWorker(t)
		for _, code := range []wire.Code{wire.CodeSlotRange, wire.CodeNotFinite, wire.CodeOverflow, wire.CodeDimension} {
			for _, index := range []uint16{0, 1, testDim, wire.Lanes, wire.Lanes * wire.DefaultStripes, 65535} {
				o := &operation{keys: []uint64{key}, values: make([]float32, testDim), ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})}
				w.acceptOperation(o)
				w.packPushes()
				if _, err := w.transmit(); err != nil {
					t.Fatal(err)
				}
				f := w.flows[flowCold]
				if key == 1003 {
					f = w.flows[flowHot]
				}
				h := wire.Header{Job: testJob, Sender: 1, Epoch: f.epoch, Seq: f.window.Base()}
				answer := wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: code, Index: index})
				w.receiveAnswer(&link.Packet{Packet: wire.Packet{Src: f.path.To(), Payload: answer}})
				var peer *PeerError
				if !errors.As(o.ticket.err, &peer) {
					t.Fatalf("%v, index %d: %v", code, index, o.ticket.err)
				}
				// Of a cold frame the index counts floats of rows; of a hot one lanes, of which
				// the pairs are in those of ranks 9 to 11, and the others hold rank 0.
				known := code != wire.CodeDimension && index < testDim
				if key == 1003 {
					known = code != wire.CodeDimension && index < wire.Lanes
				}
				if peer.KeyKnown != known || known && key == 77 && peer.Key != 77 {
					t.Errorf("%v, index %d of the frame of key %d: key %d, known: %v", code, index, key, peer.Key, peer.KeyKnown)
				}
			}
		}
	}
}

// TestUnknownCodesAreCounted lets a store refuse for a reason that no version knows.
func TestUnknownCodesAreCounted(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, memFabric(t, o), o)
	c.ledger.refuse = func(wire.Rows) error { return wire.Refusal{Code: 999} }
	ticket, err := c.workers[0].Push(ctx, []uint64{77}, make([]float32, testDim))
	if err != nil {
		t.Fatal(err)
	}
	if err := ticket.Wait(ctx); !errors.Is(err, wire.Refusal{Code: 999}) {
		t.Errorf("error %v", err)
	}
	w, err := c.workers[0].Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.server.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// If a server waits long for a processor, the worker repeats the frame, and the server refuses
	// each copy.
	if w.Refusals[len(w.Refusals)-1] != 1 || s.Refusals[len(s.Refusals)-1] == 0 {
		t.Errorf("refusals %v at the worker, %v at the server", w.Refusals, s.Refusals)
	}
}
