// SPDX-License-Identifier: Apache-2.0

// Package endpoint is the event loop that endpoints of the data path stand on: one goroutine that
// owns a link, and takes no lock.
//
// An endpoint holds a [Loop], which [Loop.Init] prepares and [Loop.Start] runs. Its goroutine
// either receives, answers and sleeps in [Loop.Serve], as servers do, or has a body of its own, as
// workers do, which calls [Loop.RunPosted], [Loop.BeginTurn] and [Loop.EndTurn] in each turn, and
// [Loop.LookAgain] before it sleeps.
// Other goroutines hand it functions by [Loop.Post] or [Loop.Do].
//
// What is in a frame, windows and timers are the endpoint's.
//
// # Units
//
// Limits are durations on the monotonic clock; a batch counts payloads.
//
// # Ownership
//
// The loop closes its link when it ends. The payloads of a batch belong to the link, and are valid
// until handle has returned and the link has taken the replies.
//
// # Errors
//
// An error of the link, or of a function that the loop calls, ends the endpoint and is the reason
// that Err returns and that pending and later calls get. After Close it is [ErrClosed].
package endpoint
