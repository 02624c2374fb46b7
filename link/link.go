// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"time"

	"github.com/libra-ina/libra/wire"
)

// ErrConfig is wrapped by errors that name a missing or wrong argument or field of a configuration.
var ErrConfig = errors.New("link: bad configuration")

// batchSize is the largest number of payloads that one system call or ring access moves.
const batchSize = 64

// Link moves payloads between one endpoint and its peers, in batches. The package documentation has
// the rules for all methods: batches, loss, ownership of memory, goroutines and errors.
type Link interface {
	// Local returns the source address of the link's payloads. It is valid and has a port; its IP
	// has no zone. The Ethernet address is zero if the link does not need one. Local does not
	// change.
	Local() wire.Endpoint
	// Limits returns the limits of the link. They do not change.
	Limits() Limits

	// Path prepares a path to a destination; a zone of to.IP must be that of the link. It waits for
	// the network, until ctx ends, only if the link needs an Ethernet address and to.MAC is zero.
	// Paths need no release. An error does not end the link.
	Path(ctx context.Context, to wire.Endpoint) (Path, error)

	// Alloc returns a free transmit buffer, or false if there is none. The buffer is the caller's
	// until Free; its initial content is undefined.
	Alloc() (Buf, bool)
	// Payload returns the memory of an allocated buffer: Limits().MaxPayload bytes, always at the
	// same address.
	Payload(Buf) []byte
	// Send queues frames in order and starts sending them. It returns how many it accepted, fewer
	// than all if a queue is full. The link may still read the buffer of an accepted frame, which
	// must not be written until the peer has answered or the buffer is free. The same buffer may be
	// sent again at any time. If the device is still reading it, the frame counts as accepted
	// although only the earlier copy is sent: a link may lose frames.
	Send([]Frame) (int, error)
	// Free returns a buffer to the link, even one that is still being sent: Alloc returns it when
	// nothing reads it any more. Freeing a buffer twice is a programming error, on which a link may
	// panic.
	Free(Buf)

	// Receive stores up to len(packets) received payloads and returns their number, 0 if there are
	// none. It does not block. The payloads are valid until the next call of Receive, and each
	// slice has a capacity of Limits().MaxPayload bytes or more, which the caller may overwrite: a
	// server writes its answer there.
	Receive(packets []Packet) (int, error)
	// Reply sends answers to packets of the last Receive: the first packet.Reply bytes of each
	// payload's memory go back to the packet's source; there is no answer if Reply is 0. It may be
	// called once for a packet. An answer that does not fit a queue is lost and counted in
	// Stats.NoRoom; the peer retransmits.
	Reply(packets []Packet) error

	// Wait sleeps until there may be something to receive, or room to send after Send accepted too
	// few frames, or Wake is called, or the limit has passed; a negative limit means none. It may
	// return early for no reason.
	Wait(limit time.Duration) error
	// Wake ends the current call of Wait, or the next if there is none. Any goroutine may call it,
	// even after Close.
	Wake()

	// Stats returns the counters; after Close, their final values.
	Stats() Stats
	// Close releases the link and all buffers. A second call does nothing.
	Close() error
}

// Limits are the limits of a link.
type Limits struct {
	// MaxPayload is the size of the largest payload in bytes.
	MaxPayload int
	// Window is the number of frames of a sender, at most [wire.DefaultWindow], that a peer's
	// receive buffers are expected to hold if the peer's link is of the same kind. It is a power of
	// two. A link has at least that many transmit buffers.
	Window int
}

// Buf identifies a transmit buffer of a [Link].
type Buf uint32

// Path is a prepared path to one destination. Each implementation of [Link] has its own type for
// it. A path belongs to the link that made it, and does not change; Send panics on a path of
// another kind of link.
type Path interface {
	// To returns the destination that was passed to Path, with the resolved Ethernet address and
	// without a zone.
	To() wire.Endpoint
}

// Frame is one payload to send.
type Frame struct {
	Buf Buf
	// Retx marks a retransmission: Send sets [wire.FlagRetx] in the payload.
	Retx bool
	Len  int // bytes of the buffer's payload, from [wire.HeaderLen] to MaxPayload
	To   Path
}

// Packet is one received payload with its source and destination addresses.
type Packet struct {
	wire.Packet

	// Reply is the length in bytes of an answer that the caller has written over the payload; see
	// Link.Reply. Receive sets it to 0.
	Reply int

	// Arrived is when the packet arrived at the host, on the kernel's CLOCK_MONOTONIC, 0 if that is
	// not known; see [StampArrivals].
	Arrived time.Duration

	// Handle is the link's own identifier of the memory; the caller must not change it.
	Handle uint32
}

// Joiner is a [Link] that has to subscribe to a multicast group; see [Join].
type Joiner interface {
	// Join makes the link receive the frames that an aggregator sends to all senders of a job
	// ([wire.AllOf]), until it is closed. Like Path, it is called by a thread in the network
	// namespace of the link. A link can join one job; a second one is an [ErrConfig].
	Join(job uint16) error
}

// Join makes a link receive the frames that an aggregator sends to all senders of a job, if the
// link, or one that it wraps, is a [Joiner]. Others need nothing.
func Join(l Link, job uint16) error {
	if j, ok := find[Joiner](l); ok {
		return j.Join(job)
	}
	return nil
}

// Watcher is a [Link] that can also wait for a descriptor of its user; see [Watch].
type Watcher interface {
	// Watch makes Wait also end when a descriptor is readable. The descriptor replaces the previous
	// one; -1 means none. The caller keeps it open. Only the goroutine that calls Wait may call
	// Watch. Watch reports whether the link supports this.
	Watch(fd int) bool
}

// Watch makes Wait of a link also end when a descriptor is readable. It reports whether the link,
// or one that it wraps, supports this.
func Watch(l Link, fd int) bool {
	w, ok := find[Watcher](l)
	return ok && w.Watch(fd)
}

// find looks for an interface in a link and in those that it wraps, through their methods Unwrap()
// Link.
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
