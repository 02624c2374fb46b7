// SPDX-License-Identifier: Apache-2.0

// Package retransmit makes one flow of frames reliable: a [Window] at the
// sender repeats what is lost, and a [Filter] at the
// receiver keeps repetitions from being applied twice. Together they apply
// every frame exactly once, whatever the network loses, duplicates, delays or
// reorders.
//
// Answers tell of each frame by itself, several of them in one ([Filter.Cover],
// [Window.Cover]), so the window knows which frames are missing. It finds most losses by the answers to later frames (RFC 8985), and
// the others by a timeout (RFC 6298) that repeats one frame and waits.
//
// A flow is (job, sender, destination); each has a sequence space of its own
// that starts at [wire.FirstSeq] and is compared by serial-number arithmetic
// (RFC 1982).
//
// # Units
//
// Windows and filters count frames; [wire.DefaultWindow] bounds them. A [Time] is in
// nanoseconds, from an origin of the caller's choice.
//
// # Errors
//
// [NewWindow] refuses a [Config] that is out of range. [Window.Check] returns a [*SilentPeerError] when a
// peer has answered nothing for the limit of silence. Answers that fit no frame are
// counted in [Stats] and change nothing.
//
// # Ownership and goroutines
//
// Everything here is a state machine. Nothing opens a socket or reads a clock: the
// caller passes the time in. A window keeps no frame, only the caller's [Entry] of it
// until the answer. Nothing allocates after construction, and nothing is safe for
// concurrent use.
package retransmit

import "time"

// Time is a point in time in nanoseconds of a monotonic clock. Its origin is
// the caller's choice, as long as no time before the origin is ever passed
// in; time.Since(start) at process start will do.
type Time int64

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
