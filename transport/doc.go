// Package transport holds the endpoints of Libra's data path: a [Worker] that
// pushes gradients and pulls weights, a [Server] that takes cold gradients and
// answers pulls, and an [AggregatorServer] that puts the Go aggregator behind
// a UDP socket.
//
// [Worker.Reduce] is the all-reduce of the hot vector between all workers of a
// job in sync mode, and [Worker.NegotiateScale] lets workers of a job with fixed
// arithmetic agree on the scale of their integers.
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
// # Exactly once
//
// What Push accepted is added exactly once, whatever the network loses,
// duplicates or reorders: a frame stays in its transmit buffer until its
// acknowledgement and is repeated from there, and receivers recognise
// repetitions (package retransmit). A push that fails says which of its frames
// were acknowledged and which were not; see [PushError].
package transport
