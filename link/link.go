// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"time"

	"github.com/libra-ina/libra/wire"
)

// ErrConfig is wrapped by errors that name an argument or a field of a
// configuration that is missing or wrong.
var ErrConfig = errors.New("link: bad configuration")

// batchSize is how many payloads one system call or ring access moves at most.
const batchSize = 64

// Link moves payloads between one endpoint and its peers, in batches. The
// package documentation has what holds for all methods: batches, loss, the
// ownership of memory, goroutines and errors.
type Link interface {
	// Local returns the address that payloads come from. It is valid and has a
	// port; its IP has no zone. The Ethernet address is zero where the link
	// does not need one. Local does not change.
	Local() wire.Endpoint
	// Limits returns what fits the link. It does not change.
	Limits() Limits

	// Path prepares a way to a destination; a zone of to.IP must be that of
	// the link. It waits for the network, until ctx ends, only if the link needs
	// an Ethernet address and to.MAC is zero. Paths need no release. An error
	// does not end the link.
	Path(ctx context.Context, to wire.Endpoint) (Path, error)

	// Alloc takes a transmit buffer, or returns false if none is free. The
	// buffer is the caller's until Free; what it holds at first is undefined.
	Alloc() (Buf, bool)
	// Payload returns the memory of a buffer that the caller has taken:
	// Limits().MaxPayload bytes, always the same ones.
	Payload(Buf) []byte
	// Send queues frames in their order and starts sending them. It returns how
	// many it took, fewer than all if a queue is full. A frame that it took may
	// still be read from the buffer, which must not be written until the peer has
	// answered or the buffer is free. The same buffer may be sent again at any
	// time. Where the device has not finished reading it, the frame counts as taken,
	// although only the earlier copy leaves: a link may lose frames.
	Send([]Frame) (int, error)
	// Free gives a buffer back, also one that is still being sent: Alloc returns
	// it when nothing reads it any more. To free a buffer twice is a programming
	// error, on which a link may panic.
	Free(Buf)

	// Receive fills in what has arrived, at most len(packets) payloads, and
	// returns their number; 0 if there are none. It does not wait. The payloads
	// are valid until the next call of Receive, and each slice has a capacity of
	// Limits().MaxPayload bytes or more, which the caller may overwrite: a server
	// writes its answer there.
	Receive(packets []Packet) (int, error)
	// Reply sends answers to packets of the last Receive: the first
	// packet.Reply bytes of its payload's memory go back to the packet's source, none
	// where Reply is 0. It may be called once for a packet. An answer that does not
	// fit a queue is lost and counted in Stats.NoRoom; the peer asks again.
	Reply(packets []Packet) error

	// Wait sleeps until there may be something to receive, or room to send where
	// Send took too few frames, or Wake was called, or the limit has passed; a
	// negative limit is none. It may return early for no reason.
	Wait(limit time.Duration) error
	// Wake ends the current call of Wait, or the next if there is none. Any
	// goroutine may call it, and after Close, too.
	Wake()

	// Stats returns the counters so far, and after Close the final ones.
	Stats() Stats
	// Close releases the link and all buffers. A second call does nothing.
	Close() error
}

// Limits are what fits a link.
type Limits struct {
	// MaxPayload is the size of the largest payload in bytes.
	MaxPayload int
	// Window is how many frames of a sender, at most [wire.DefaultWindow], a
	// peer's receive buffers are expected to hold if the peer's link is like this.
	// It is a power of two. A link has at least that many transmit buffers.
	Window int
}

// Buf names one transmit buffer of a [Link].
type Buf uint32

// Path is a prepared way to one destination. Each implementation of [Link] has a
// type of its own for it. A path belongs to the link that made it, and does not
// change; Send panics if it is given one of another kind of link.
type Path interface {
	// To returns the destination: as Path got it, with the Ethernet address that
	// was found, and without a zone.
	To() wire.Endpoint
}

// Frame is one payload to send.
type Frame struct {
	Buf Buf
	// Retx marks a repetition: Send sets [wire.FlagRetx] in the payload.
	Retx bool
	Len  int // bytes of the buffer's payload, from [wire.HeaderLen] to MaxPayload
	To   Path
}

// Packet is one received payload, with the addresses that it came from and to.
type Packet struct {
	wire.Packet

	// Reply is set by a server that has written an answer over the payload,
	// to the answer's length in bytes; see Link.Reply. Receive sets it to 0.
	Reply int

	// Handle is the link's own name for the memory; the caller keeps it as it is.
	Handle uint32
}

// Joiner is a [Link] that must be told to take frames to a multicast group; see
// [Join].
type Joiner interface {
	// Join makes the link hand over what an aggregator sends to all senders of
	// a job ([wire.AllOf]), until it is closed. Like Path, it is called by a thread
	// in the network namespace of the link. A link takes part in one job: another
	// one is an [ErrConfig].
	Join(job uint16) error
}

// Join makes a link hand over what an aggregator sends to all senders of a job,
// if the link, or one that it wraps, is a [Joiner]. Others need nothing.
func Join(l Link, job uint16) error {
	if j, ok := find[Joiner](l); ok {
		return j.Join(job)
	}
	return nil
}

// Watcher is a [Link] that can wait for a descriptor of its user, too; see [Watch].
type Watcher interface {
	// Watch makes Wait end when a descriptor is readable, until another one takes its place; -1 is
	// none. The caller keeps the descriptor open as long. Only the goroutine that calls Wait
	// calls it. It reports whether the link can do that.
	Watch(fd int) bool
}

// Watch makes Wait of a link also end when a descriptor is readable, and reports whether the link, or
// one that it wraps, can do that.
func Watch(l Link, fd int) bool {
	w, ok := find[Watcher](l)
	return ok && w.Watch(fd)
}

// find looks for a facility in a link and in those that it wraps. A link that
// wraps another one has a method Unwrap() Link.
func find[T any](l Link) (t T, ok bool) {
	for l != nil {
		if t, ok = l.(T); ok {
			return t, true
		}
		wrapper, wraps := l.(interface{ Unwrap() Link })
		if !wraps {
			break
		}
		l = wrapper.Unwrap()
	}
	return t, false
}
