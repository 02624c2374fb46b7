// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// TestAnswersComeTwice lets a server answer each frame twice, and once more long after its push is
// complete: nothing is settled twice, and each buffer is returned once.
func TestAnswersComeTwice(t *testing.T) {
	p := newPausable(t, time.Hour)
	free := len(p.link.(*memLink).free)
	var old [][]byte
	for round := range 5 {
		o := p.push(20)
		for range 20 {
			h, err := wire.ParseHeader(next(t.Context(), t, p.server).Payload)
			if err != nil {
				t.Fatal(err)
			}
			ack := wire.PutAck(make([]byte, wire.HeaderLen), h)
			for range 2 {
				p.server.deliver(ack, p.link.Local())
			}
			old = append(old, ack)
			if _, err := p.turn(); err != nil {
				t.Fatal(err)
			}
		}
		for _, ack := range old {
			p.server.deliver(ack, p.link.Local())
		}
		for range 10 {
			if _, err := p.turn(); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-o.ticket.done:
		default:
			t.Fatal("the push is not done")
		}
		if err := o.ticket.err; err != nil || o.acked != 20 || o.outstanding != 0 {
			t.Fatalf("round %d: %v; %d acknowledged, %d outstanding", round, err, o.acked, o.outstanding)
		}
		if n := len(p.link.(*memLink).free); n != free {
			t.Fatalf("round %d: %d buffers are free, %d were", round, n, free)
		}
	}
	s := p.snapshot()
	if want := uint64(5*20 + 20*(1+2+3+4+5)); s.Cold.Acked != 100 || s.Cold.Repeated != want || s.Stray != 0 {
		t.Errorf("%+v; want %d answers counted as repeated", s.Cold, want)
	}
}

// stingyLink accepts a random number of frames at a time.
type stingyLink struct {
	link.Link
	rng  *rand.Rand
	seqs map[uint16][]uint32 // as sent, by port of the peer and without repetitions
}

func (l *stingyLink) Send(frames []link.Frame) (int, error) {
	n := l.rng.IntN(len(frames) + 1)
	for _, f := range frames[:n] {
		if h, err := wire.ParseHeader(l.Payload(f.Buf)[:f.Len]); err == nil && !f.Retx {
			id := uint16(f.To.To().IP.As4()[3])
			l.seqs[id] = append(l.seqs[id], h.Seq)
		}
	}
	return l.Link.Send(frames[:n])
}

// TestPartialSends pushes through a link that often accepts only some of the frames: each is sent
// once, in order, and the sums are exact.
func TestPartialSends(t *testing.T) {
	ctx := deadline(t)
	var stingy *stingyLink
	o := clusterOptions{workers: 1, tamper: func(c *WorkerConfig) {
		stingy = &stingyLink{Link: c.Link, rng: rand.New(rand.NewPCG(3, 4)), seqs: map[uint16][]uint32{}}
		c.Link = stingy
	}}
	c := newCluster(t, memFabric(t, o), o)
	want := pushAll(ctx, t, c.workers, 1, 20, 1000)
	if diff := cmp.Diff(want, c.sums()); diff != "" {
		t.Errorf("sums (-pushed +held):\n%.1000s", diff)
	}
	s, err := c.workers[0].Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.workers[0].Close(); err != nil {
		t.Fatal(err)
	}
	total := uint64(0)
	for peer, seqs := range stingy.seqs {
		for i, seq := range seqs {
			if seq != uint32(wire.FirstSeq+i) {
				t.Fatalf("frame %d to peer %d leaves as number %d", seq, peer, i+1)
			}
		}
		total += uint64(len(seqs))
	}
	if len(stingy.seqs) != 2 || total != s.Hot.Sent+s.Cold.Sent {
		t.Errorf("%d frames left for %d peers; %d were sent to 2", total, len(stingy.seqs), s.Hot.Sent+s.Cold.Sent)
	}
}

// TestRepetitionsThatDoNotFit checks that they are tried again at the next timeout.
func TestRepetitionsThatDoNotFit(t *testing.T) {
	p := newPausable(t, time.Hour)
	full := &fullLink{Link: p.link, room: 1}
	p.link = full
	o := p.push(1)
	if n := p.answer(); n != 1 {
		t.Fatalf("%d frames arrived", n)
	}
	if _, err := full.Link.Receive(p.pkts); err != nil { // the answer is lost
		t.Fatal(err)
	}
	// No room for any repetition, for a second.
	if err := p.listen(time.Second); err != nil {
		t.Fatal(err)
	}
	if n := p.answer(); n != 0 {
		t.Fatalf("%d frames arrived", n)
	}
	full.room = 100
	if err := p.listen(60 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := p.answer(); n == 0 {
		t.Fatal("no repetition when there was room")
	}
	if _, err := p.turn(); err != nil || o.acked != 1 {
		t.Errorf("%v, %d acknowledged", err, o.acked)
	}
}

// TestRoundTripsExcludePacking lets time pass between packing and sending a frame: it does not
// count as round-trip time.
func TestRoundTripsExcludePacking(t *testing.T) {
	p := newPausable(t, time.Hour)
	full := &fullLink{Link: p.link}
	p.link = full
	p.push(1)
	if d := p.patience(); d != endpoint.SendRetry {
		t.Errorf("a worker with frames that wait for room sleeps for %v, want %v", d, endpoint.SendRetry)
	}
	p.clock += retransmit.Time(50 * time.Millisecond)
	full.room = 1
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	p.clock += retransmit.Time(3 * time.Millisecond)
	p.answer()
	if _, err := p.turn(); err != nil {
		t.Fatal(err)
	}
	if s := p.snapshot(); s.Cold.SRTT != 3*time.Millisecond || s.Cold.Acked != 1 || s.Cold.Retransmitted != 0 {
		t.Errorf("%+v, want a round trip of 3ms", s.Cold)
	}
}
