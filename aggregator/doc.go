// SPDX-License-Identifier: Apache-2.0

// Package aggregator defines what an aggregator does with frames, and contains the golden model:
// [Model], a state machine in plain Go. The XDP and P4 data planes are tested against it, bit for
// bit, and it serves UDP sockets where there is no XDP.
//
// An aggregator holds jobs. A job owns an array of slots, one sum per hot parameter, in two copies
// (banks). In most modes, frames add to the current bank while the control plane reads the frozen
// one. In mode [Sync], frames add to the current round while the other bank holds the result of the
// previous round, for workers that have missed it. In mode [Acked] there is one bank, which a round
// keeps until all workers have told that they have its result. Only admitted senders can add to a
// job, each frame is applied at most once, and a frame is applied completely or not at all.
//
// docs/wire.md is the normative text, and the files of testdata/vectors are its examples in frames.
//
// [Plane] is the management interface that every data plane offers to its control plane.
//
// # Units
//
// A slot is an int64 whose meaning depends on the job's [Arithmetic]: units of 2^Exp, an int32, or
// the bits of a float32. [JobConfig.Float32] and [JobConfig.Units] convert it.
//
// # Errors
//
// Management calls return errors that wrap those listed below. Frames cause no error: the decision
// about a frame is a [Verdict], and a refusal is answered by an ERROR frame and counted.
//
// # Ownership and goroutines
//
// A [Bank] belongs to the caller of Swap until Clear, and its Slots are the plane's memory.
// [Model.Process] writes into the caller's reply and keeps neither buffer. Several goroutines may
// use a Plane, also while frames are processed.
package aggregator
