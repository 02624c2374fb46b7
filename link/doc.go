// SPDX-License-Identifier: Apache-2.0

// Package link moves payloads for an endpoint: over AF_XDP sockets, over a kernel
// UDP socket, or over an implementation of your own. Package transport builds workers
// and servers on it.
//
// [OpenAFXDP] and [OpenUDP] return a [Link]; frames, semantics and tests of both
// are the same. [WithFaults] puts a path that loses, duplicates and reorders in
// front of a link. [TapOf] gives copies of the frames that a link sends and receives.
//
// # Units: payloads, frames, batches
//
// A payload begins with the [wire.Header] and is at most Limits().MaxPayload bytes
// long. Ethernet, IP and UDP headers are the link's. All methods that move
// payloads take a batch, because a system call or a ring access for each would cost
// more than the rest; batches of 64 are enough. On Linux nothing on this way
// allocates, except in a link of WithFaults.
//
// # What a link promises
//
// A link may lose, duplicate and reorder payloads. A payload that it hands over is
// intact, was sent to this address and port, and came from the address that it
// names, as far as the network can be trusted. Nothing is repeated by the link
// itself: package retransmit does that, from the same buffer.
//
// # Ownership
//
// A transmit buffer belongs to the link until Alloc, then to the caller until Free.
// It is not written between Send and the answer of the peer, because the link does
// not copy it. A received payload belongs to the caller until the next Receive; the
// caller may write an answer over it and send that with Reply.
//
// # Goroutines
//
// One goroutine at a time calls the methods of a link, Close among them. Only Wake
// may be called by others at any time. A [Tap] and its listeners may be used by any
// goroutine, and never make the link wait.
//
// # Errors
//
// An error of Send, Receive, Reply or Wait is the end of the link: close it. After
// Close they return an error that is [net.ErrClosed]. What may pass - a full queue,
// an interface that is down, a destination that cannot be reached - is no error: it
// is counted, Stats.LastError has the reason, and the peer's silence decides. A
// wrong argument or configuration is an [ErrConfig]. Paths and buffers of one link
// given to another are programming errors.
//
// # Links of your own
//
// Implement [Link], with a type of your own for [Path], and run the tests of
// package linktest on it. Implement [Joiner] if the link has to subscribe to
// multicast groups. A link that wraps another one should have a method Unwrap() Link,
// through which [Join] and [TapOf] find the facilities of the one below.
package link
