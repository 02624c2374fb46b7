// SPDX-License-Identifier: Apache-2.0

// Package aggregator defines what an aggregator does with frames, and contains
// the golden model of it: [Model], a state machine in plain Go that the XDP and
// P4 data planes are tested against, bit for bit, and that serves UDP sockets
// where there is no XDP.
//
// An aggregator holds jobs. A job owns an array of slots, one sum per hot
// parameter, in two copies (banks). In most modes, frames add to the current bank
// while the control plane reads the frozen one; in mode [Sync], frames add to the
// round in progress while the other bank holds the result of the one before, for
// workers that have missed it. Only admitted senders can add to a job, each frame
// is applied at most once, and a frame is applied whole or not at all.
//
// docs/wire.md is the normative text, and the files of testdata/vectors say the
// same in frames.
//
// [Plane] is the management interface that every data plane offers to its
// control plane.
//
// # Units
//
// A slot is an int64 whose meaning is the job's [Arithmetic]: units of 2^Exp, an int32,
// or the bits of a float32. [JobConfig.Float32] and [JobConfig.Units] convert it.
//
// # Errors
//
// Management calls return errors that wrap those listed below. A frame has no error: what
// becomes of it is a [Verdict], and a refusal is answered by an ERROR frame and counted.
//
// # Ownership and goroutines
//
// A [Bank] belongs to the caller of Swap until Clear, and its Slots are the plane's memory.
// [Model.Process] writes into the caller's reply and keeps neither buffer. A Plane may be
// used by several goroutines, also while frames are processed.
package aggregator
