// SPDX-License-Identifier: Apache-2.0

// Package reducer adds small vectors of all workers of a job in microseconds: an all-reduce of 1 to
// 220 values, and a barrier. The aggregator adds the vectors; no server takes part.
//
// A [Reducer] is one worker's end. Start contributes the worker's values to the next operation and
// returns at once; Wait returns the sums of all workers. Up to 256 operations may be in flight, so
// that a worker computes while others are on their way. All workers start the same operations in
// the same order.
//
//	op, err := r.Start(values) // sends
//	...                        // compute; call r.Poll now and then if it takes long
//	err = r.Wait(op, sums)
//
// Queue instead of Start leaves the values for the next frame. Those of an operation of up to ten
// values share it with others, so more operations end in a second, each a little later.
//
// transport.Worker.Reduce adds whole vectors of any length instead, through a goroutine of its own.
//
// # Units
//
// Values are float32 in jobs of exact arithmetic, whose sums do not depend on the order in which
// contributions arrive; or int32 in jobs of fixed arithmetic, whose sums saturate. The width of an
// operation counts values, InFlight counts operations.
//
// # Frames
//
// A bundle is the operations of a frame: one, or several that were queued. Bundle k is round ⌊k/N⌋
// of group k mod N of a job in mode sync with N groups, where N is the number of operations in
// flight (docs/wire.md, Rounds). A contribution is quiet: the aggregator answers only when it has
// all, so a bundle costs each worker one frame in each direction. A contribution or a result that
// is lost is repeated after the time that results take, or when a later operation has its result.
// The answer to a repetition says who has contributed; an aggregator that cannot tell, such as a
// switch, sends a plain ACK, and errors then name nobody.
//
// Operations are side by side in the lanes of a frame. Where there can be several, its last two
// lanes tell which calls have made the bundle, and their sums whether all workers have made the
// same. Results are returned when all bundles before theirs have shown that too.
//
// With Shape.Acked the job's mode is acked: a worker that has a result says so, and starts the
// operation that follows by InFlight when all have said so. The aggregator then needs one bank for
// the job, and an operation takes two frames in each direction and, one at a time, two round trips.
//
// # Goroutines
//
// A Reducer has no goroutine: its caller's runs the link, inside Start, Queue, Wait, Barrier and
// Poll. Only one goroutine at a time may use a Reducer. Between these calls nothing is received or
// repeated, so other workers wait for repetitions of a worker that computes long without Poll.
//
// A call that waits polls the link and yields the processor to others between two polls, as long as
// that saves more time than it wastes, and sleeps otherwise. No call allocates memory, except for
// errors.
//
// # Ownership
//
// A Reducer owns its link and closes it. Values belong to the caller again when Start or Queue
// returns; sums are written by Wait alone.
//
// # Errors
//
// Values that cannot be sent are refused with a [*ValueError], and calls out of order with
// [ErrUse]; the operations go on. All other errors end the Reducer, and later calls return them
// again: the worker is out of step with the others, and the job has to be created anew. A
// [*MissingError] names the workers that have not contributed within the limit. A [*RefusedError]
// wraps the [wire.Refusal] of the aggregator. An [*OutOfStepError] ends the Reducers of all workers
// if one has made other calls than the others, as far as that makes other frames; no sum is wrong.
// An error of Config.Ended is wrapped. After Close the error is [net.ErrClosed].
package reducer
