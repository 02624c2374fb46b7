// SPDX-License-Identifier: Apache-2.0

// Package transport holds the endpoints of Libra's data path: a [Worker] that
// pushes gradients and pulls weights, a [Server] that takes cold gradients and
// answers pulls, and an [AggregatorServer] that puts the Go aggregator behind
// a UDP socket.
//
// A worker pushes with [Worker.Push]; with [Worker.PushLater] batches that are
// smaller than a frame; with [Worker.PushSum] it also reads the aggregator's sums.
// Batches whose keys come again are looked up once, by [Worker.Prepare].
// [Worker.Reduce] is the all-reduce of the hot vector between all workers of a
// job in sync mode, and [Worker.NegotiateScale] has workers of a job with fixed
// arithmetic agree on the scale of their integers.
//
// # Units
//
// A batch is a list of keys and as many rows of Dim float32 gradients, one after
// the other. Hot sums come back as float32 whatever the job's arithmetic. Flow and
// round limits are durations, windows count frames.
//
// # Links
//
// An endpoint sends and receives through a [link.Link]. [link.OpenUDP] gives one on a
// kernel socket, [link.OpenAFXDP] one on an AF_XDP socket; frames, semantics and
// tests are the same. [link.WithFaults] puts a lossy, duplicating, reordering
// path in front of either. [link.TapOf] gives copies of the
// frames that a link sends and receives.
//
// # Goroutines
//
// Each endpoint is one goroutine that owns the link, the send windows, the
// packing and the timers, and takes no lock. It is not locked to a thread, so
// that the scheduler can switch between it and a goroutine that pushes without
// the kernel's help. The methods of an endpoint may be called from any
// goroutine: they hand their arguments to that one through a channel and wake
// it if it sleeps. When there is nothing to do it sleeps until the next timer.
//
// # Ownership
//
// The slices of a call are the worker's until the call returns, and those of
// PushLater until the ticket is done. An endpoint owns its link and closes it.
//
// # Exactly once
//
// What Push accepted is added exactly once, whatever the network loses,
// duplicates or reorders: a frame stays in its transmit buffer until its
// acknowledgement and is repeated from there, and receivers recognise
// repetitions (package retransmit).
//
// # Errors
//
// A batch that the packer refuses is not sent at all, and the error is the
// packer's. A push that fails later returns a [*PushError], which counts the frames
// that were acknowledged, refused, and neither. It wraps the reason: a [*PeerError]
// names the peer and wraps a [wire.Refusal], a [*retransmit.SilentPeerError] or
// [ErrAnswer]. A peer that stays silent ends the worker; a refusal does not. Rounds
// fail with a [*RoundError]. After Close, and in all calls that Close ends, the
// error is [ErrClosed].
package transport
