// SPDX-License-Identifier: Apache-2.0

// Package transport holds the endpoints of Libra's data path: a [Worker] pushes
// gradients and pulls weights, a [Server] receives cold gradients and answers
// pulls, and an [AggregatorServer] serves the Go aggregator on a UDP socket.
//
// [Worker.Push] pushes a batch, [Worker.PushLater] lets small batches share frames,
// and [Worker.PushSum] also reads the aggregator's sums. [Worker.Prepare] looks up
// the keys of a repeated batch once. [Worker.Reduce] is the all-reduce of the hot
// vector between all workers of a job in sync mode. With [Worker.NegotiateScale]
// the workers of a job with fixed arithmetic agree on the scale of their integers.
//
// # Units
//
// A batch is a list of keys and one row of Dim float32 gradients for each key,
// concatenated. Hot sums are returned as float32 in every arithmetic. Flow and
// round limits are durations, windows count frames.
//
// # Links
//
// An endpoint sends and receives through a [link.Link]. [link.OpenUDP] opens one on a
// kernel socket, [link.OpenAFXDP] one on an AF_XDP socket; frames, semantics and
// tests are the same. [link.WithFaults] wraps either in a path that loses,
// duplicates and reorders frames. [link.TapOf] copies the frames that a link sends
// and receives.
//
// # Goroutines
//
// Each endpoint is one goroutine that owns the link, the send windows, the
// packing and the timers, and takes no lock. It is not locked to a thread, so that
// the scheduler can switch to a pushing goroutine without a system call. The
// methods of an endpoint may be called from any goroutine: they pass their
// arguments through a channel and wake the endpoint if it sleeps. An idle endpoint
// sleeps until the next timer.
//
// # Ownership
//
// The slices passed to a call belong to the worker until the call returns, or, for
// PushLater, until the ticket is done. An endpoint owns its link and closes it.
//
// # Exactly once
//
// Each gradient that Push accepts is added exactly once, whatever the network
// loses, duplicates or reorders: a frame stays in its transmit buffer, from which
// it is retransmitted, until it is acknowledged, and receivers detect duplicates
// (package retransmit).
//
// # Errors
//
// A batch that the packer refuses is not sent at all, and the error is the
// packer's. A push that fails later returns a [*PushError], which counts the frames
// that were acknowledged, refused, or neither. It wraps the reason: a [*PeerError]
// names the peer and wraps a [wire.Refusal], a [*retransmit.SilentPeerError] or
// [ErrAnswer]. A silent peer ends the worker; a refusal does not. Rounds fail with
// a [*RoundError]. After Close, and in calls that Close interrupts, the error is
// [ErrClosed].
package transport
