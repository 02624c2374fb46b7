// Package link moves payloads between an endpoint and its peers, over AF_XDP or
// over UDP.
package link

import (
	"context"
	"errors"
	"time"

	"github.com/libra-ina/libra/wire"
)

// ErrConfig is wrapped by errors that name a field of a configuration that is
// missing or wrong.
var ErrConfig = errors.New("link: bad configuration")

// rxBatch is how many payloads a link moves at a time.
const rxBatch = 64

// Buf names one transmit buffer of a [Link].
type Buf uint32

// Frame is one payload to send.
type Frame struct {
	Buf Buf
	Len int // bytes of the buffer's payload, header included
	To  *Path
	// Retx marks a repetition: Send sets [wire.FlagRetx] in the payload.
	Retx bool
}

// Packet is one received payload.
type Packet struct {
	wire.Packet

	// Reply is set by a server that has written an answer over the payload,
	// to the answer's length in bytes; see Link.Reply.
	Reply int

	slot uint32 // the link's own name for the buffer
}

// Path is a prepared way to one destination. It belongs to the link that made
// it and does not change.
type Path struct {
	To wire.Endpoint

	envelope *wire.Envelope // AF_XDP
	sockaddr []byte         // UDP on Linux
}

// Link moves payloads between an endpoint and its peers, in batches. A payload
// begins with the [wire.Header]; what comes before it on the wire is the
// link's. A link may lose, duplicate and reorder payloads, but a payload that
// it hands over is intact.
//
// One goroutine calls the methods; only Wake may be called from others. After Close, methods that return an error return
// one that is [net.ErrClosed].
type Link interface {
	// Local returns the address that payloads come from.
	Local() wire.Endpoint
	// MaxPayload returns the size of the largest payload in bytes.
	MaxPayload() int
	// Window returns how many frames, at most [wire.DefaultWindow], a peer's
	// receive buffers are expected to hold, if the peer's link is like this.
	Window() int
	// Path prepares a way to a destination. It blocks only if the link needs
	// an Ethernet address and to.MAC is zero.
	Path(ctx context.Context, to wire.Endpoint) (*Path, error)

	// Join makes the link hand over what an aggregator sends to all senders of
	// a job ([wire.AllOf]). It is called like Path.
	Join(job uint16) error

	// Alloc takes a free transmit buffer. It is the endpoint's until Free.
	Alloc() (Buf, bool)
	// Payload returns the memory of a buffer's payload, MaxPayload bytes. It
	// must not be written between Send and the answer of the peer.
	Payload(Buf) []byte
	// Send queues frames and starts sending them. It returns how many it took,
	// fewer than all if a queue is full; an error is the link's end. A frame
	// whose buffer the device has not finished reading since an earlier Send
	// counts as taken, because its copy is about to leave.
	Send([]Frame) (int, error)
	// Free gives a buffer back, also one that is still being sent.
	Free(Buf)

	// Receive fills in what has arrived and returns how many payloads that
	// is, 0 if none; it does not block. Payloads are valid until the next
	// call of Receive. Their memory has room for MaxPayload bytes, so that a
	// server can write its answer over a request.
	Receive([]Packet) (int, error)
	// Reply sends, for every packet whose field Reply is not 0, as many bytes
	// of its payload's memory back to where the packet came from. The packets
	// must come from the last Receive. An answer that does not fit a queue is
	// lost.
	Reply([]Packet) error

	// Wait sleeps until there may be something to receive, room to send, or a
	// call of Wake, at most for the given time; a negative time is no limit.
	Wait(time.Duration) error
	// Wake ends a current or the next Wait.
	Wake()

	// Stats returns the counters so far.
	Stats() Stats
	// Close releases the link. Buffers are invalid afterwards.
	Close() error
}

// Stats counts what a link sent, received and discarded.
type Stats struct {
	Sent      uint64 // payloads sent, answers included
	SendError uint64 // payloads that the kernel refused to send; the sender repeats them
	NoRoom    uint64 // answers lost because a transmit queue was full
	Received  uint64 // payloads handed over

	// Received frames that were discarded.
	Foreign     uint64 // not a Libra frame, or not for this address and port
	Truncated   uint64 // shorter than its headers announce, or cut because it was too long
	BadChecksum uint64 // IPv4 or UDP checksum wrong or absent
	Overrun     uint64 // no receive buffer was free (AF_XDP; kernel's XDP_STATISTICS)

	// Injected by WithFaults, both directions.
	Dropped, Duplicated, Reordered uint64

	// LastError is why the kernel refused to send last, if it did.
	LastError error
}
