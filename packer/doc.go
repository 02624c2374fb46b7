// SPDX-License-Identifier: Apache-2.0

// Package packer packs gradients into frames.
//
//   - A [HotSet] lists the hot parameters in rank order. Package heat finds them.
//   - [Packer] splits a batch into hot and cold gradients and writes both directly
//     into frame buffers: [Packer.Begin] once, then [Packer.Fill] for each frame.
//     [Packer.Prepare] looks up the keys of repeated batches once.
//   - [PutVector] and [TakeVector] write and read the whole hot vector, group by
//     group, for jobs in sync mode.
//   - Package placement has Algorithm 1 and the other placements of the paper.
//
// The paper is Pan et al., "Libra: In-network Gradient Aggregation for Speeding up
// Distributed Sparse Deep Training", 2022.
//
// # Units
//
// A row has a key and Dim gradients. Its row rank is its place in the hot set, 0
// for the hottest; a gradient's scalar rank is row rank × Dim + column. A slot is the
// scalar rank div wire.Lanes, a register or lane the scalar rank mod wire.Lanes.
// Gradients are finite float32; [Numbers] is their format in hot frames. Exponents
// are powers of two.
//
// # Errors
//
// A batch is refused as a whole before a frame of it is written, with [ErrShape], a
// [*NotFiniteError] or a [*RangeError]. Errors of a configuration wrap
// [ErrConfig]; those of a hot-set file name the defect.
//
// # Ownership and goroutines
//
// A Packer reads the caller's batch until all of it is in frames, and writes into
// payloads that the caller owns; it keeps neither. A Prepared keeps its keys. The
// scratch memory of a Packer grows to the largest batch; after that, packing does not
// allocate.
//
// The package uses no sockets and no clocks. Its values are not safe for concurrent
// use, except for HotSet, which is immutable, Prepared, and [Packer.Prepare].
package packer
