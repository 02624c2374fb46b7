// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is the way a captured frame went. The values are those of a pcapng
// packet's flags.
type Direction uint8

const (
	// Inbound frames were received, also those that the link then discarded.
	Inbound Direction = 1
	// Outbound frames were handed to the kernel.
	Outbound Direction = 2
)

// TapSnapLen is how many bytes of a frame a listener gets at most. No frame of
// ours is longer.
const TapSnapLen = 4096

// TappedFrame is a copy of a whole Ethernet frame, without its check sequence.
type TappedFrame struct {
	// Time at which the batch was handed to the kernel or taken from it.
	Time      time.Time
	Direction Direction
	Data      []byte // the first TapSnapLen bytes
	Len       int    // bytes on the wire
	// Lost counts the frames that found the queue full since the one before.
	Lost uint64
}

// Tap gives copies of a link's frames to its listeners. Without any it costs the link
// one atomic load for each batch; listeners never make it wait.
type Tap struct {
	hearing atomic.Pointer[[]*Listener] // nil: there are none
	done    chan struct{}               // closed with the link

	mu     sync.Mutex // orders Listen, Listener.Close and close
	closed bool
}

func newTap() *Tap { return &Tap{done: make(chan struct{})} }

// TapOf returns the tap of a link that [OpenAFXDP] or [OpenUDP] made, or that wraps
// one, as a link of [WithFaults] does: its listeners get what is really sent and
// received. Other links have none; TapOf returns nil.
//
// The frames of an AF_XDP link are the very bytes in its UMEM. A UDP socket
// shows payloads only; around them Ethernet (addresses zero, as on a loopback
// interface), IP and UDP headers are built as an AF_XDP link would build them.
func TapOf(link Link) *Tap {
	if l, ok := find[interface{ tapped() *Tap }](link); ok {
		return l.tapped()
	}
	return nil
}

// Listen returns a listener that gets every frame from now on, through a queue
// of about the given number of bytes. It fails with net.ErrClosed if the link is
// closed.
func (t *Tap) Listen(queue int) (*Listener, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	l := &Listener{tap: t, more: make(chan struct{}, 1), ring: newTapRing(queue)}
	all := append(t.listeners(), l)
	t.hearing.Store(&all)
	return l, nil
}

// listeners returns a copy of the list, which the link may be reading.
func (t *Tap) listeners() []*Listener {
	if p := t.hearing.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

func (t *Tap) remove(l *Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.DeleteFunc(t.listeners(), func(o *Listener) bool { return o == l })
	if len(all) == 0 {
		t.hearing.Store(nil)
		return
	}
	t.hearing.Store(&all)
}

// close ends the tap with its link.
func (t *Tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		close(t.done)
	}
}

// tapBatch copies the frames of one batch to the listeners that there were when the
// batch began.
type tapBatch struct {
	to   []*Listener
	time time.Time
}

// begin returns the batch that the link is about to send or has just received.
func (t *Tap) begin() (b tapBatch, listening bool) {
	p := t.hearing.Load()
	if p == nil {
		return b, false
	}
	return tapBatch{to: *p, time: time.Now()}, true
}

func (b *tapBatch) add(d Direction, frame []byte) {
	for _, l := range b.to {
		l.put(b.time, d, frame)
	}
}

func (b *tapBatch) end() {
	for _, l := range b.to {
		select {
		case l.more <- struct{}{}:
		default: // it has not yet looked since the last time
		}
	}
}

// Listener is a queue of a link's frames. One goroutine at a time calls Read.
type Listener struct {
	tap  *Tap
	ring tapRing
	more chan struct{}

	lost uint64 // since the last frame that was queued; the link's goroutine only

	queued, dropped atomic.Uint64
}

// put queues a copy of a frame, or counts it as lost.
func (l *Listener) put(at time.Time, d Direction, frame []byte) {
	f := TappedFrame{Time: at, Direction: d, Data: frame[:min(len(frame), TapSnapLen)], Len: len(frame), Lost: l.lost}
	if l.ring.put(&f) {
		l.lost = 0
		l.queued.Add(1)
		return
	}
	l.lost++
	l.dropped.Add(1)
}

// Read returns the oldest frame in the queue, or false if there is none. The
// frame's data is valid until the next call.
func (l *Listener) Read() (TappedFrame, bool) { return l.ring.get() }

// More receives a value when there may be frames to read again after Read has
// found none.
func (l *Listener) More() <-chan struct{} { return l.more }

// Done is closed when the link is; what is in the queue by then can be read.
func (l *Listener) Done() <-chan struct{} { return l.tap.done }

// Counts returns how many frames were queued and how many found the queue full.
func (l *Listener) Counts() (queued, dropped uint64) {
	return l.queued.Load(), l.dropped.Load()
}

// Close ends the listening.
func (l *Listener) Close() { l.tap.remove(l) }
