// SPDX-License-Identifier: Apache-2.0

package linktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// batch is the number of payloads moved at a time.
const batch = 64

// pair is two links and the paths between them.
type pair struct {
	*testing.T
	ctx    context.Context
	a, b   link.Link
	ab, ba link.Path
	sent   uint32 // messages so far, which numbers them
	// known are the messages by receiver: copies may arrive at any time.
	known map[link.Link]map[uint32]message
}

func (p *pair) path(from, to link.Link) link.Path {
	p.Helper()
	path, err := from.Path(p.ctx, to.Local())
	if err != nil {
		p.Fatalf("Path from %v to %v: %v", from.Local(), to.Local(), err)
	}
	return path
}

// message is a payload that is determined by its number and its length, so that a receiver can
// check that it is intact.
type message struct {
	seq uint32
	len int
}

func (m message) put(payload []byte) {
	wire.Header{Type: wire.TypePull, Seq: m.seq}.Put(payload)
	for i := wire.HeaderLen; i < m.len; i++ {
		payload[i] = m.at(i)
	}
}

func (m message) at(i int) byte { return byte(m.seq*131) ^ byte(i*7+i>>8) }

// check compares a payload with the expected message.
func (m message) check(payload []byte) error {
	if len(payload) != m.len {
		return fmt.Errorf("message %d has %d bytes, want %d", m.seq, len(payload), m.len)
	}
	for i := wire.HeaderLen; i < m.len; i++ {
		if payload[i] != m.at(i) {
			return fmt.Errorf("message %d of %d bytes: byte %d is %#x, want %#x", m.seq, m.len, i, payload[i], m.at(i))
		}
	}
	return nil
}

// messages returns new messages of the given lengths.
func (p *pair) messages(lengths ...int) []message {
	var all []message
	for _, n := range lengths {
		p.sent++
		all = append(all, message{p.sent, n})
	}
	return all
}

// inbox holds the messages that have arrived.
type inbox struct {
	*pair
	at, from link.Link
	missing  map[uint32]message
	known    map[uint32]message
	pkts     []link.Packet
}

func (p *pair) inbox(at, from link.Link, all []message) *inbox {
	in := &inbox{pair: p, at: at, from: from, missing: map[uint32]message{}, known: p.known[at],
		pkts: make([]link.Packet, batch)}
	for _, m := range all {
		in.missing[m.seq], in.known[m.seq] = m, m
	}
	return in
}

// take receives what has arrived and checks it. It returns the received packets, including
// duplicates.
func (in *inbox) take() []link.Packet {
	in.Helper()
	n, err := in.at.Receive(in.pkts)
	if err != nil || n > len(in.pkts) {
		in.Fatalf("Receive: %d packets, %v", n, err)
	}
	for _, p := range in.pkts[:n] {
		h, err := wire.ParseHeader(p.Payload)
		if err != nil {
			in.Fatalf("received % x: %v", p.Payload, err)
		}
		m, ok := in.known[h.Seq]
		if !ok {
			in.Fatalf("received message %d, which was not sent", h.Seq)
		}
		if err := m.check(p.Payload); err != nil {
			in.Fatal(err)
		}
		if p.Src.AddrPort() != in.from.Local().AddrPort() || p.Dst.AddrPort() != in.at.Local().AddrPort() {
			in.Fatalf("message %d came from %v to %v, want %v to %v", h.Seq, p.Src, p.Dst, in.from.Local(), in.at.Local())
		}
		if p.Reply != 0 {
			in.Fatalf("a received packet has Reply %d", p.Reply)
		}
		delete(in.missing, h.Seq)
	}
	return in.pkts[:n]
}

// listen receives until nothing has arrived for a moment or nothing is missing, and passes each
// batch to handle, which may be nil.
func (in *inbox) listen(handle func([]link.Packet)) {
	in.Helper()
	for quiet := 0; quiet < 3 && len(in.missing) > 0; {
		got := in.take()
		if len(got) > 0 {
			quiet = 0
			if handle != nil {
				handle(got)
			}
			continue
		}
		quiet++
		if err := in.at.Wait(5 * time.Millisecond); err != nil {
			in.Fatalf("Wait: %v", err)
		}
	}
}

// listenOnce receives what has arrived, or waits a moment for it.
func (in *inbox) listenOnce() {
	in.Helper()
	if len(in.take()) == 0 {
		if err := in.at.Wait(time.Millisecond); err != nil {
			in.Fatalf("Wait: %v", err)
		}
		in.take()
	}
}

// receive receives once, and waits a moment if nothing has arrived.
func (p *pair) receive(l link.Link, pkts []link.Packet) int {
	p.Helper()
	for try := 0; ; try++ {
		n, err := l.Receive(pkts)
		if err != nil {
			p.Fatalf("Receive: %v", err)
		}
		if n > 0 || try == 1 {
			return n
		}
		if err := l.Wait(time.Millisecond); err != nil {
			p.Fatalf("Wait: %v", err)
		}
	}
}

// alloc returns a buffer, and waits for one that is still being sent if none is free.
func (p *pair) alloc(l link.Link) link.Buf {
	p.Helper()
	for p.ctx.Err() == nil {
		if b, ok := l.Alloc(); ok {
			return b
		}
		if err := l.Wait(time.Millisecond); err != nil {
			p.Fatalf("Wait: %v", err)
		}
	}
	p.Fatal("no transmit buffer became free")
	return 0
}

// fill allocates and fills a buffer for each message.
func (p *pair) fill(l link.Link, to link.Path, all []message) []link.Frame {
	p.Helper()
	var frames []link.Frame
	for _, m := range all {
		b := p.alloc(l)
		m.put(l.Payload(b))
		frames = append(frames, link.Frame{Buf: b, Len: m.len, To: to})
	}
	return frames
}

// send sends frames, in as many calls as needed.
func (p *pair) send(l link.Link, frames []link.Frame) {
	p.Helper()
	for len(frames) > 0 {
		n, err := l.Send(frames)
		if err != nil || n < 0 || n > len(frames) {
			p.Fatalf("Send of %d frames: %d, %v", len(frames), n, err)
		}
		if frames = frames[n:]; n == 0 {
			if err := l.Wait(time.Millisecond); err != nil {
				p.Fatalf("Wait: %v", err)
			}
			p.inTime()
		}
	}
}

func free(l link.Link, frames []link.Frame) {
	for _, f := range frames {
		l.Free(f.Buf)
	}
}

// inTime fails a test that has exceeded its deadline.
func (p *pair) inTime() {
	p.Helper()
	if p.ctx.Err() != nil {
		p.Fatalf("not done within %v", patience)
	}
}

// exchange sends messages from one link to the other until all have arrived.
func (p *pair) exchange(from, to link.Link, way link.Path, all []message) {
	p.Helper()
	p.deliver(from, p.fill(from, way, all), p.inbox(to, from, all), nil)
}

// deliver sends frames until all messages of an inbox have arrived, and passes each batch that it
// receives to handle, which may be nil.
func (p *pair) deliver(from link.Link, frames []link.Frame, in *inbox, handle func([]link.Packet)) {
	p.Helper()
	for len(in.missing) > 0 {
		p.inTime()
		p.send(from, frames)
		in.listen(handle)
	}
	free(from, frames)
}
