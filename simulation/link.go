// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// spoilt overwrites a payload that the endpoint no longer owns.
var spoilt = bytes.Repeat([]byte{0xdb}, 1<<10)

// queueLen is the number of frames that wait in a link until its device reads them.
const queueLen = 96

// simLink is the [link.Link] of one process. It uses all freedom that a link has: the device reads
// a buffer after Send has returned, received payloads are overwritten at the next Receive, and Send
// accepts only some frames.
type simLink struct {
	s    *sim
	host *host
	act  *actor // the endpoint's goroutine

	bufs  []buffer
	free  []link.Buf
	queue []queued
	draw  bool // an event that drains queue is due

	inbox   []link.Packet
	lent    []link.Packet
	woken   atomic.Bool
	waits   bool // for room
	early   bool // the current Wait ends without a reason
	arrived func() bool
	crashed bool
	closed  atomic.Bool
	stats   link.Stats
	hearing *hearing // nil: a receiver's
}

type buffer struct {
	mem    []byte
	taken  bool // by the endpoint
	queued bool // the device will read it
}

// queued is a frame that the device has not read: a buffer, or an answer.
type queued struct {
	buf    int // -1: an answer
	len    int
	answer []byte
	to     wire.Endpoint
}

// path is a way to an endpoint.
type path wire.Endpoint

func (p path) To() wire.Endpoint { return wire.Endpoint(p) }

// open gives a host a link, for a new process.
func (s *sim) open(h *host) *simLink {
	p := &s.plan
	l := &simLink{s: s, host: h, bufs: make([]buffer, 2*p.window+64)}
	for i := range l.bufs {
		l.free = append(l.free, link.Buf(i))
	}
	l.arrived = func() bool {
		return len(l.inbox) > 0 || l.woken.Load() || l.early || l.closed.Load() || l.crashed || l.waits && len(l.queue) < queueLen/2
	}
	if !s.serves(h) && h.name != theServer && h.name != theSwitch {
		l.hearing = &hearing{peers: map[wire.Endpoint]*heard{}}
	}
	l.act = s.newActor(h.name, h)
	h.link = l
	return l
}

func (l *simLink) Local() wire.Endpoint { return l.host.at }

func (l *simLink) Limits() link.Limits {
	return link.Limits{MaxPayload: l.s.plan.payload, Window: l.s.plan.window}
}

func (l *simLink) Path(_ context.Context, to wire.Endpoint) (link.Path, error) {
	if !to.IP.IsValid() || to.Port == 0 {
		return nil, fmt.Errorf("%w: no path to %v", link.ErrConfig, to)
	}
	return path(to), nil
}

func (l *simLink) Alloc() (link.Buf, bool) {
	for i := len(l.free) - 1; i >= 0; i-- {
		b := l.free[i]
		if l.bufs[b].queued {
			continue // freed, but still to be read
		}
		l.free = append(l.free[:i], l.free[i+1:]...)
		l.bufs[b].taken = true
		if l.bufs[b].mem == nil { // most are never used
			l.bufs[b].mem = make([]byte, l.s.plan.payload)
		}
		return b, true
	}
	return 0, false
}

func (l *simLink) Payload(b link.Buf) []byte { return l.bufs[b].mem }

func (l *simLink) Free(b link.Buf) {
	if !l.bufs[b].taken {
		l.s.fail("%s: buffer %d is freed twice", l.host.name, b)
		return
	}
	l.bufs[b].taken = false
	l.free = append(l.free, b)
}

// broken returns why no call of the link succeeds any more.
func (l *simLink) broken() error {
	switch {
	case l.crashed || l.s.over:
		return errGone
	case l.closed.Load():
		return net.ErrClosed
	}
	return nil
}

func (l *simLink) Send(frames []link.Frame) (int, error) {
	l.act.yield("send")
	if err := l.broken(); err != nil {
		return 0, err
	}
	room := min(len(frames), queueLen-len(l.queue))
	if l.s.plan.kinds&Queue != 0 && !l.s.healed && l.s.schedule.IntN(8) == 0 {
		l.s.result.Short++
		room = l.s.schedule.IntN(room + 1)
	}
	l.waits = room < len(frames)
	for _, f := range frames[:room] {
		b := &l.bufs[f.Buf]
		switch {
		case !b.taken:
			l.s.fail("%s: buffer %d is sent, but free", l.host.name, f.Buf)
		case b.queued:
			continue // only the earlier copy is sent
		}
		if f.Retx {
			wire.MarkRetx(b.mem[:f.Len])
		}
		b.queued = true
		l.asks(f.To.To(), b.mem[:f.Len])
		l.enqueue(queued{buf: int(f.Buf), len: f.Len, to: f.To.To()})
	}
	return room, nil
}

func (l *simLink) enqueue(q queued) {
	l.queue = append(l.queue, q)
	if !l.draw {
		l.draw = true
		l.s.quietly(time.Duration(500+l.s.schedule.IntN(3000)), l.drain)
	}
}

// drain acts as the device, which reads some frames from the queue.
func (l *simLink) drain() {
	l.draw = false
	if l.crashed {
		return
	}
	n := min(len(l.queue), 1+l.s.schedule.IntN(32))
	for _, q := range l.queue[:n] {
		payload := q.answer
		if q.buf >= 0 {
			payload = append([]byte(nil), l.bufs[q.buf].mem[:q.len]...)
			l.bufs[q.buf].queued = false
		}
		l.stats.Sent++
		l.s.net.carry(l.host, q.to, payload)
	}
	l.queue = append(l.queue[:0], l.queue[n:]...)
	if len(l.queue) > 0 && !l.draw {
		l.draw = true
		l.s.quietly(time.Duration(500+l.s.schedule.IntN(3000)), l.drain)
	}
}

func (l *simLink) Receive(pkts []link.Packet) (int, error) {
	for _, p := range l.lent {
		mem := p.Payload[:cap(p.Payload)]
		for len(mem) > 0 {
			mem = mem[copy(mem, spoilt):]
		}
	}
	l.lent = l.lent[:0]
	l.act.yield("receive")
	if err := l.broken(); err != nil {
		return 0, err
	}
	n := min(len(pkts), len(l.inbox))
	if n > 1 && n == len(l.inbox) {
		n = 1 + l.s.schedule.IntN(n)
	}
	l.hears(n, len(pkts))
	copy(pkts, l.inbox[:n])
	l.lent = append(l.lent, pkts[:n]...)
	l.inbox = append(l.inbox[:0], l.inbox[n:]...)
	l.stats.Received += uint64(n)
	l.s.ledger.handed(l.host, pkts[:n])
	l.s.cluster.books().handed(l.host, pkts[:n])
	return n, nil
}

func (l *simLink) Reply(pkts []link.Packet) error {
	l.s.ledger.answers(l.host, pkts)
	l.s.cluster.books().answers(l.host, pkts)
	l.act.yield("reply")
	if err := l.broken(); err != nil {
		return err
	}
	for _, p := range pkts {
		switch {
		case p.Reply == 0:
		case len(l.queue) == queueLen:
			l.stats.NoRoom++
		default:
			l.enqueue(queued{buf: -1, answer: append([]byte(nil), p.Payload[:p.Reply]...), to: p.Src})
		}
	}
	return nil
}

func (l *simLink) Wait(limit time.Duration) error {
	var until time.Time
	if limit >= 0 {
		until = time.Now().Add(limit)
	}
	l.early = l.s.plan.kinds&Queue != 0 && !l.s.healed && l.s.schedule.IntN(16) == 0
	if l.early {
		l.s.result.Short++
	}
	l.act.park("wait", l.arrived, until)
	l.woken.Store(false)
	l.waits = l.waits && len(l.queue) >= queueLen/2
	return l.broken()
}

// Wake parks a caller that has passed work to the endpoint's goroutine, which may then run first. A
// caller in another actor's turn, which that actor has caused by ending its wait, does not affect
// the turn's result and does not park.
func (l *simLink) Wake() {
	l.woken.Store(true)
	if a := l.s.current.Load(); a != nil && a != l.act && a.caller && !a.hasty {
		a.yield("wake")
	}
}

// Enter parks a goroutine that is not an actor and has work for the endpoint's goroutine, which
// does not run in the meantime.
func (l *simLink) Enter() {
	if l.s.cluster == nil {
		return // they park between two calls
	}
	a := l.s.newActor(l.act.name+" "+above("transport.", "endpoint."), l.host)
	a.hasty = true
	a.yield("enters")
	a.leave()
}

func (l *simLink) Stats() link.Stats { return l.stats }

func (l *simLink) Close() error {
	l.listens()
	l.closed.Store(true)
	l.act.leave()
	return nil
}

// held returns the number of the endpoint's buffers without requests for row numbers, for which no
// call waits.
func (l *simLink) held() int {
	n := len(l.bufs) - len(l.free)
	for _, b := range l.bufs {
		if h, err := wire.ParseHeader(b.mem); err == nil && h.Type == wire.TypeFind && b.taken {
			n--
		}
	}
	return n
}
