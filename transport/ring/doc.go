// SPDX-License-Identifier: Apache-2.0

// Package ring adds long vectors of all workers without an aggregator and without a server: each
// worker sends to the next one only, around a ring. With a codec, what they send is several times
// shorter (package codec); it is INCEPTIONN's gradient exchange (Li et al., MICRO 2018, Algorithm
// 1), with results that are the same at all workers, bit for bit.
//
// A [Ring] is one worker's end. Reduce replaces a vector by the sum of all workers' vectors:
//
//	r, err := ring.New(ctx, ring.Config{Link: l, Workers: all, Place: 2, Values: len(gradients)})
//	...
//	err = r.Reduce(gradients) // all workers call it, as often as each other
//
// An operation moves 2 - 2/N times the vector over each worker's line, whatever N is. Small vectors
// have less delay by an aggregator: see package reducer.
//
// # Units
//
// Values are float32, lengths count them. Operations are numbered from 1. A step is one of the 2N -
// 2 parts of an operation, in each of which a worker passes one block of the vector on.
//
// # Codec
//
// With Codec.Bound, blocks travel as codes. The codes cut off less than 2^-(Bound+Scale) of each
// value, once for each worker. What a worker has cut off it adds to its own values of the next
// operation, so that over many operations nothing is lost: give Reduce the plain gradients each
// time.
//
// # Frames
//
// docs/wire.md (Rings) has the protocol: BLOCK frames, with windows and duplicate filters. Values
// of an operation are sent only to a successor that has begun it, so no worker keeps frames for
// later.
//
// # Goroutines
//
// A Ring has no goroutine: its caller's runs the link, inside Reduce, Poll and Close. Only one
// goroutine at a time may use a Ring. Between these calls nothing is received or repeated, so that
// other workers may wait for a repetition of a worker that computes long without Poll. Reduce polls
// the link and yields the processor between two polls as long as that saves more time than it
// wastes, and sleeps otherwise. No call allocates memory, except for errors.
//
// # Ownership
//
// A Ring owns its link and closes it. The vector belongs to the Ring only during Reduce.
//
// # Errors
//
// A [*ValueError] refuses values before they are sent, and [ErrUse] a vector of the wrong length;
// the operations go on. All other errors end the Ring, and later calls return them again: the
// worker is out of step with the others, the vector is undefined, and all workers have to start
// anew, with another Epoch. A [*MissingError] names the neighbours that have not come, a
// [*MismatchError] one with other vectors, workers or codes, a [*RefusedError] one that has refused
// a frame. An error of Config.Ended is wrapped. After Close the error is [net.ErrClosed].
package ring
