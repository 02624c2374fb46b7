// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// directValues is the length of the vectors of two workers on a direct line.
const directValues = 20_000

// direct is a line between two workers that one goroutine drives, which allocates nothing.
type direct struct{ ends [2]directLink }

type directLink struct {
	link.Link // nil: methods that a Ring does not call

	local wire.Endpoint
	peer  *directLink
	bufs  [][]byte
	free  []link.Buf
	mem   [][]byte // of received payloads
	inbox []link.Packet
	head  int // of inbox, a ring
	count int
}

func (d *direct) config(place int, with codec.Config) Config {
	const places = 1024
	cfg := Config{Place: place, Values: directValues, Codec: with, Look: -1}
	for i := range d.ends {
		l := &d.ends[i]
		l.local = wire.Endpoint{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Port: wire.DefaultPort}
		l.peer = &d.ends[1-i]
		cfg.Workers = append(cfg.Workers, l.local)
		for b := len(l.bufs); b < places; b++ {
			l.bufs, l.free = append(l.bufs, make([]byte, wire.DefaultPayload)), append(l.free, link.Buf(b))
			l.mem, l.inbox = append(l.mem, make([]byte, wire.DefaultPayload)), append(l.inbox, link.Packet{})
		}
	}
	cfg.Link = &d.ends[place]
	return cfg
}

func (l *directLink) Limits() link.Limits {
	return link.Limits{MaxPayload: wire.DefaultPayload, Window: wire.DefaultWindow}
}

func (l *directLink) Path(_ context.Context, to wire.Endpoint) (link.Path, error) {
	return path(to), nil
}

func (l *directLink) Alloc() (link.Buf, bool) {
	last := len(l.free) - 1
	b := l.free[last]
	l.free = l.free[:last]
	return b, true
}

func (l *directLink) Payload(b link.Buf) []byte { return l.bufs[b] }

func (l *directLink) Free(b link.Buf) { l.free = append(l.free, b) }

func (l *directLink) Send(frames []link.Frame) (int, error) {
	for _, f := range frames {
		l.peer.push(l.local, l.bufs[f.Buf][:f.Len])
	}
	return len(frames), nil
}

func (l *directLink) push(from wire.Endpoint, payload []byte) {
	at := (l.head + l.count) % len(l.inbox)
	l.count++
	mem := l.mem[at][:cap(l.mem[at])]
	l.inbox[at] = link.Packet{Packet: wire.Packet{Src: from, Dst: l.local, Payload: mem[:copy(mem, payload)]}}
}

func (l *directLink) Receive(pkts []link.Packet) (n int, err error) {
	for ; n < len(pkts) && l.count > 0; n++ {
		pkts[n] = l.inbox[l.head]
		l.head, l.count = (l.head+1)%len(l.inbox), l.count-1
	}
	return n, nil
}

func (l *directLink) Reply(pkts []link.Packet) error {
	for _, p := range pkts {
		if p.Reply > 0 {
			l.peer.push(l.local, p.Payload[:p.Reply])
		}
	}
	return nil
}

func (l *directLink) Stats() link.Stats        { return link.Stats{} }
func (l *directLink) Wait(time.Duration) error { return nil }
func (l *directLink) Close() error             { return nil }
