// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// spoilt overwrites a payload that the endpoint no longer owns.
var spoilt = bytes.Repeat([]byte{0xdb}, 1<<10)

// queueLen is the number of frames that wait in a link until its device reads them.
const queueLen = 96

// Watcher is told of what the process of a link sends and gets.
type Watcher interface {
	// Sends is called when the process gives a frame to its link.
	Sends(to wire.Endpoint, payload []byte)
	// Gets is called when the process gets payloads. more means that others wait, although there was
	// room for them.
	Gets(pkts []link.Packet, more bool)
	// Answers is called when the process answers the payloads that it got last.
	Answers(pkts []link.Packet)
	// Closes is called when the process closes its link, with the payloads that it has not got.
	Closes(waiting []link.Packet)
}

// Link is the [link.Link] of one process. It uses all freedom that a link has: the device reads
// a buffer after Send has returned, received payloads are overwritten at the next Receive, and Send
// accepts only some frames.
type Link struct {
	w     *World
	host  *Host
	act   *Actor // the endpoint's goroutine
	watch Watcher

	bufs  []buffer
	free  []link.Buf
	queue []queued // sent or answered, and not read by the device
	draw  bool     // an event that drains queue is due

	inbox   []link.Packet // arrived, and not received
	lent    []link.Packet // received, and the process's until its next Receive
	woken   atomic.Bool   // Wake was called since the last Wait
	waits   bool          // for room in queue
	early   bool          // the current Wait ends without a reason
	arrived func() bool   // the current Wait may end
	crashed bool
	closed  atomic.Bool
	stats   link.Stats

	readable func(fd int) bool // nil: it cannot watch a descriptor
	fd       int               // that it watches; -1: none
}

type buffer struct {
	mem    []byte
	taken  bool // by the endpoint
	queued bool // the device will read it
}

// queued is a frame that the device has not read: a buffer, or an answer.
type queued struct {
	buf    int // number of the buffer; -1: an answer
	len    int // of the payload in the buffer
	answer []byte
	to     wire.Endpoint
}

// path is a way to an endpoint.
type path wire.Endpoint

func (p path) To() wire.Endpoint { return wire.Endpoint(p) }

// Open gives a host a link, for a new process whose actor has a name.
func (w *World) Open(h *Host, name string, watch Watcher) *Link {
	l := &Link{w: w, host: h, watch: watch, bufs: make([]buffer, 2*w.options.Conditions.Window+64), fd: -1}
	for i := range l.bufs {
		l.free = append(l.free, link.Buf(i))
	}
	l.arrived = func() bool {
		return len(l.inbox) > 0 || l.woken.Load() || l.early || l.closed.Load() || l.crashed ||
			l.waits && len(l.queue) < queueLen/2
	}
	l.act = w.NewActor(name, h)
	h.link = l
	return l
}

// Unread returns how many payloads wait for the process.
func (l *Link) Unread() int { return len(l.inbox) }

// Crash ends the link as its process ends, with all that is in its queues.
func (l *Link) Crash() {
	l.crashed = true
	l.inbox, l.queue = nil, nil
}

// Local implements [link.Link].
func (l *Link) Local() wire.Endpoint { return l.host.at }

// Limits implements [link.Link].
func (l *Link) Limits() link.Limits {
	return link.Limits{MaxPayload: l.w.options.Conditions.Payload, Window: l.w.options.Conditions.Window}
}

// Path implements [link.Link]: there is one to every endpoint.
func (l *Link) Path(_ context.Context, to wire.Endpoint) (link.Path, error) {
	if !to.IP.IsValid() || to.Port == 0 {
		return nil, fmt.Errorf("%w: no path to %v", link.ErrConfig, to)
	}
	return path(to), nil
}

// Alloc implements [link.Link]. A buffer that the device has still to read is not given out.
func (l *Link) Alloc() (link.Buf, bool) {
	for i := len(l.free) - 1; i >= 0; i-- {
		b := l.free[i]
		if l.bufs[b].queued {
			continue // freed, but still to be read
		}
		l.free = append(l.free[:i], l.free[i+1:]...)
		l.bufs[b].taken = true
		if l.bufs[b].mem == nil { // most are never used
			l.bufs[b].mem = make([]byte, l.w.options.Conditions.Payload)
		}
		return b, true
	}
	return 0, false
}

// Payload implements [link.Link].
func (l *Link) Payload(b link.Buf) []byte { return l.bufs[b].mem }

// Free implements [link.Link]. A buffer that is freed twice is a violation.
func (l *Link) Free(b link.Buf) {
	if !l.bufs[b].taken {
		l.w.Fail("%s: buffer %d is freed twice", l.host.name, b)
		return
	}
	l.bufs[b].taken = false
	l.free = append(l.free, b)
}

// broken returns why no call of the link succeeds any more.
func (l *Link) broken() error {
	switch {
	case l.crashed || l.w.over:
		return ErrGone
	case l.closed.Load():
		return net.ErrClosed
	}
	return nil
}

// short decides whether a call does less than it could, once in n times.
func (l *Link) short(n int) bool {
	return l.w.options.Conditions.ShortQueues && !l.w.healed && l.w.schedule.IntN(n) == 0
}

// Send implements [link.Link]. A buffer that is free is a violation.
func (l *Link) Send(frames []link.Frame) (int, error) {
	l.act.Yield("send")
	if err := l.broken(); err != nil {
		return 0, err
	}
	room := min(len(frames), queueLen-len(l.queue))
	if l.short(8) {
		l.w.Short++
		room = l.w.schedule.IntN(room + 1)
	}
	l.waits = room < len(frames)
	for _, f := range frames[:room] {
		b := &l.bufs[f.Buf]
		switch {
		case !b.taken:
			l.w.Fail("%s: buffer %d is sent, but free", l.host.name, f.Buf)
		case b.queued:
			continue // only the earlier copy is sent
		}
		if f.Retx {
			wire.MarkRetx(b.mem[:f.Len])
		}
		b.queued = true
		l.watch.Sends(f.To.To(), b.mem[:f.Len])
		l.enqueue(queued{buf: int(f.Buf), len: f.Len, to: f.To.To()})
	}
	return room, nil
}

func (l *Link) enqueue(q queued) {
	l.queue = append(l.queue, q)
	if !l.draw {
		l.draw = true
		l.w.quietly(time.Duration(500+l.w.schedule.IntN(3000)), l.drain)
	}
}

// drain acts as the device, which reads some frames from the queue.
func (l *Link) drain() {
	l.draw = false
	if l.crashed {
		return
	}
	n := min(len(l.queue), 1+l.w.schedule.IntN(32))
	for _, q := range l.queue[:n] {
		payload := q.answer
		if q.buf >= 0 {
			payload = append([]byte(nil), l.bufs[q.buf].mem[:q.len]...)
			l.bufs[q.buf].queued = false
		}
		l.stats.Sent++
		l.w.Net.carry(l.host, q.to, payload)
	}
	l.queue = append(l.queue[:0], l.queue[n:]...)
	if len(l.queue) > 0 && !l.draw {
		l.draw = true
		l.w.quietly(time.Duration(500+l.w.schedule.IntN(3000)), l.drain)
	}
}

// Receive implements [link.Link]. It overwrites the payloads of the last call.
func (l *Link) Receive(pkts []link.Packet) (int, error) {
	for _, p := range l.lent {
		mem := p.Payload[:cap(p.Payload)]
		for len(mem) > 0 {
			mem = mem[copy(mem, spoilt):]
		}
	}
	l.lent = l.lent[:0]
	l.act.Yield("receive")
	if err := l.broken(); err != nil {
		return 0, err
	}
	n := min(len(pkts), len(l.inbox))
	if n > 1 && n == len(l.inbox) {
		n = 1 + l.w.schedule.IntN(n)
	}
	more := n < min(len(pkts), len(l.inbox))
	copy(pkts, l.inbox[:n])
	l.lent = append(l.lent, pkts[:n]...)
	l.inbox = append(l.inbox[:0], l.inbox[n:]...)
	l.stats.Received += uint64(n)
	l.watch.Gets(pkts[:n], more)
	return n, nil
}

// Reply implements [link.Link].
func (l *Link) Reply(pkts []link.Packet) error {
	l.watch.Answers(pkts)
	l.act.Yield("reply")
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

// Wait implements [link.Link].
func (l *Link) Wait(limit time.Duration) error {
	var until time.Time
	if limit >= 0 {
		until = time.Now().Add(limit)
	}
	l.early = l.short(16)
	if l.early {
		l.w.Short++
	}
	if l.fd >= 0 && l.readable(l.fd) {
		l.woken.Store(true)
	}
	l.act.Park("wait", l.arrived, until)
	l.woken.Store(false)
	l.waits = l.waits && len(l.queue) >= queueLen/2
	return l.broken()
}

// Wake parks a caller that has passed work to the endpoint's goroutine, which may then run first. A
// caller in another actor's turn, which that actor has caused by ending its wait, does not affect
// the turn's result and does not park.
func (l *Link) Wake() {
	l.woken.Store(true)
	if a := l.w.current.Load(); a != nil && a != l.act && a.caller && !a.hasty {
		a.Yield("wake")
	}
}

// WatchBy makes the link able to watch descriptors. readable reports whether one is readable;
// whoever makes it so calls Signal.
func (l *Link) WatchBy(readable func(fd int) bool) { l.readable = readable }

// Watch implements [link.Watcher].
func (l *Link) Watch(fd int) bool {
	if l.readable != nil {
		l.fd = fd
	}
	return l.readable != nil
}

// Signal ends a wait of the link, because the descriptor that it watches has become readable.
func (l *Link) Signal() {
	if l.fd >= 0 {
		l.woken.Store(true)
		l.w.Kick()
	}
}

// Enter parks a goroutine that is not an actor and has work for the endpoint's goroutine, which
// does not run in the meantime.
func (l *Link) Enter() {
	if !l.w.options.Background {
		return // they park between two calls
	}
	a := l.w.NewActor(l.act.name+" "+above("transport.", "endpoint."), l.host)
	a.hasty = true
	a.Yield("enters")
	a.Leave()
}

// Stats implements [link.Link].
func (l *Link) Stats() link.Stats { return l.stats }

// Close implements [link.Link].
func (l *Link) Close() error {
	l.watch.Closes(l.inbox)
	l.closed.Store(true)
	l.act.Leave()
	return nil
}

// Held returns the number of the endpoint's buffers without requests for row numbers, for which no
// call waits.
func (l *Link) Held() int {
	n := len(l.bufs) - len(l.free)
	for _, b := range l.bufs {
		if h, err := wire.ParseHeader(b.mem); err == nil && h.Type == wire.TypeFind && b.taken {
			n--
		}
	}
	return n
}

// above names the function that has called into packages that call each other.
func above(pkgs ...string) string {
	var pcs [24]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for inside := false; ; {
		f, more := frames.Next()
		name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		in := slices.ContainsFunc(pkgs, func(pkg string) bool { return strings.HasPrefix(name, pkg) })
		if inside && !in || !more {
			return name
		}
		inside = inside || in
	}
}
