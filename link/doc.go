// SPDX-License-Identifier: Apache-2.0

// Package link moves payloads for an endpoint: over AF_XDP sockets, over a kernel UDP socket, or
// over your own implementation. Package transport builds workers and servers on it.
//
// [OpenAFXDP] and [OpenUDP] return a [Link]; frames, semantics and tests of both are the same.
// [WithFaults] adds loss, duplication and reordering to a link. [TapOf] gives copies of the frames
// that a link sends and receives.
//
// # Units: payloads, frames, batches
//
// A payload begins with the [wire.Header] and is at most Limits().MaxPayload bytes long. The link
// adds and removes Ethernet, IP and UDP headers. All methods that move payloads work on batches,
// because a system call or a ring access for each payload would cost more than the rest; batches of
// 64 are enough. On Linux these methods do not allocate, except in a link of WithFaults.
//
// # What a link promises
//
// A link may lose, duplicate and reorder payloads. A payload that it delivers is intact, was sent
// to this address and port, and came from the source address that it names, as far as the network
// can be trusted. The link itself retransmits nothing: package retransmit does, from the same
// buffer.
//
// # Ownership
//
// A transmit buffer belongs to the link until Alloc, then to the caller until Free. It must not be
// written between Send and the peer's answer, because the link does not copy it. A received payload
// belongs to the caller until the next Receive; the caller may overwrite it with an answer and send
// that with Reply.
//
// # Goroutines
//
// One goroutine at a time calls the methods of a link, including Close. Only Wake may be called by
// others at any time. A [Tap] and its listeners may be used by any goroutine, and never block the
// link.
//
// # Errors
//
// An error of Send, Receive, Reply or Wait is the end of the link: close it. After Close they
// return an error that is [net.ErrClosed]. Temporary failures - a full queue, an interface that is
// down, an unreachable destination - are not errors: they are counted, Stats.LastError has the
// reason, and the peer's silence decides. So it is with all that can change under a link: it
// follows the addresses of its peers, and works again on an interface that was deleted and created
// again. A wrong argument or configuration is an [ErrConfig]. Passing a path or a buffer of one
// link to another is a programming error.
//
// # Your own links
//
// Implement [Link], with your own type for [Path], and run the tests of package linktest on it.
// Implement [Joiner] if the link has to subscribe to multicast groups. A link that wraps another
// one should have a method Unwrap() Link, through which [Join] and [TapOf] find the features of the
// wrapped link.
package link
