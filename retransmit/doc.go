// SPDX-License-Identifier: Apache-2.0

// Package retransmit makes one flow of frames reliable: a [Window] at the sender
// retransmits lost frames, and a [Filter] at the receiver detects duplicates.
// Together they apply every frame exactly once, whatever the network loses,
// duplicates, delays or reorders.
//
// Answers acknowledge each frame, several of them in one answer ([Filter.Cover],
// [Window.Cover]), so the window knows which frames are missing. It detects most
// losses by the answers to later frames (RFC 8985), and the others by a timeout
// (RFC 6298) that retransmits one frame and waits.
//
// A flow is (job, sender, destination); each has its own sequence space that
// starts at [wire.FirstSeq] and is compared by serial-number arithmetic
// (RFC 1982).
//
// # Units
//
// Windows and filters count frames; [wire.DefaultWindow] bounds them. A [Time] is in
// nanoseconds, from an origin of the caller's choice.
//
// # Errors
//
// [NewWindow] refuses a [Config] that is out of range. [Window.Check] returns a
// [*SilentPeerError] when a peer has not answered for the limit of silence. Answers
// that match no frame are counted in [Stats] and have no effect.
//
// # Ownership and goroutines
//
// All types are state machines that open no socket and read no clock: the caller passes
// the time. A window keeps no frame, only the caller's [Entry] of it until the answer.
// Nothing allocates after construction, and nothing is safe for concurrent use.
package retransmit

import "time"

// Time is a point in time in nanoseconds of a monotonic clock. The caller chooses
// its origin, before which no time may be passed; time.Since(start) at process
// start is suitable.
type Time int64

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
