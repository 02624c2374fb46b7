// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is the direction of a captured frame. The values are those of a pcapng packet's flags.
type Direction uint8

const (
	// Inbound frames were received, including those that the link then discarded.
	Inbound Direction = 1
	// Outbound frames were passed to the kernel.
	Outbound Direction = 2
)

// TapSnapLen is the largest number of bytes of a frame that a listener gets. No frame of Libra is
// longer.
const TapSnapLen = 4096

// TappedFrame is a copy of a whole Ethernet frame, without its check sequence.
type TappedFrame struct {
	// Time at which the batch was passed to the kernel or received from it.
	Time      time.Time
	Direction Direction
	Data      []byte // the first TapSnapLen bytes
	Len       int    // bytes on the wire
	// Lost is the number of frames since the previous one for which the queue was full.
	Lost uint64
}

// Tap gives copies of a link's frames to its listeners. Without listeners it costs the link one
// atomic load for each batch; listeners never block it.
type Tap struct {
	hearing atomic.Pointer[[]*Listener] // nil without listeners
	done    chan struct{}               // closed with the link

	mu     sync.Mutex // orders Listen, Listener.Close and closeListeners
	closed bool
}

func newTap() *Tap { return &Tap{done: make(chan struct{})} }

// TapOf returns the tap of a link that [OpenAFXDP] or [OpenUDP] made, or that wraps one, as a link
// of [WithFaults] does: its listeners get the frames that are really sent and received. For other
// links it returns nil.
//
// The frames of an AF_XDP link are the exact bytes in its UMEM. A UDP socket has only payloads; the
// tap adds the Ethernet (addresses zero, as on a loopback interface), IP and UDP headers that an
// AF_XDP link would build.
func TapOf(link Link) *Tap {
	if l, ok := find[interface{ tappedLink() *Tap }](link); ok {
		return l.tappedLink()
	}
	return nil
}

// Listen returns a listener that gets every frame from now on, through a queue of about the given
// number of bytes. It fails with net.ErrClosed if the link is closed.
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

// listeners returns a copy of the list, because the link may be reading it.
func (t *Tap) listeners() []*Listener {
	if p := t.hearing.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

func (t *Tap) removeListener(l *Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.DeleteFunc(t.listeners(), func(o *Listener) bool { return o == l })
	if len(all) == 0 {
		t.hearing.Store(nil)
		return
	}
	t.hearing.Store(&all)
}

func (t *Tap) closeListeners() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		close(t.done)
	}
}

// tapBatch copies the frames of one batch to the listeners that existed when the batch began.
type tapBatch struct {
	to   []*Listener
	time time.Time
}

// beginBatch returns the batch that the link is about to send or has just received.
func (t *Tap) beginBatch() (b tapBatch, listening bool) {
	p := t.hearing.Load()
	if p == nil {
		return b, false
	}
	return tapBatch{to: *p, time: time.Now()}, true
}

func (b *tapBatch) addFrame(d Direction, frame []byte) {
	for _, l := range b.to {
		l.queueFrame(b.time, d, frame)
	}
}

func (b *tapBatch) endBatch() {
	for _, l := range b.to {
		select {
		case l.more <- struct{}{}:
		default: // it has not yet read the previous signal
		}
	}
}

// Listener is a queue of a link's frames. One goroutine at a time calls Read.
type Listener struct {
	tap  *Tap
	ring tapRing
	more chan struct{}

	lost uint64 // since the last queued frame; used by the link's goroutine only

	queued, dropped atomic.Uint64
}

// queueFrame queues a copy of a frame, or counts it as lost.
func (l *Listener) queueFrame(at time.Time, d Direction, frame []byte) {
	f := TappedFrame{Time: at, Direction: d, Data: frame[:min(len(frame), TapSnapLen)], Len: len(frame), Lost: l.lost}
	if l.ring.putFrame(&f) {
		l.lost = 0
		l.queued.Add(1)
		return
	}
	l.lost++
	l.dropped.Add(1)
}

// Read returns the oldest frame in the queue, or false if there is none. The
// frame's data is valid until the next call.
func (l *Listener) Read() (TappedFrame, bool) { return l.ring.nextFrame() }

// More receives a value when there may be frames again after Read has found none.
func (l *Listener) More() <-chan struct{} { return l.more }

// Done is closed when the link is; frames that are still in the queue can be read.
func (l *Listener) Done() <-chan struct{} { return l.tap.done }

// Counts returns the numbers of frames that were queued and that were dropped because the queue was
// full.
func (l *Listener) Counts() (queued, dropped uint64) {
	return l.queued.Load(), l.dropped.Load()
}

// Close stops the listener.
func (l *Listener) Close() { l.tap.removeListener(l) }
