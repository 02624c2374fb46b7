// SPDX-License-Identifier: Apache-2.0

// Package heat finds the hot parameters.
//
//   - [Sampler] samples training rows.
//   - [Exact] and [SpaceSaving] count the updates of parameters in the sample; the
//     result is a [Ranking].
//   - [Principle] makes a [packer.HotSet] of a ranking (Principle 1 of the paper,
//     §3.3).
//
// # Units
//
// A count is in updates, a share is a fraction of all updates, from 0 to 1, and memory is
// in bytes. A row has a key and Dim gradients, each of which takes a slot.
//
// # Errors
//
// Errors of a configuration wrap [packer.ErrConfig]. [ErrShare] means that no hot set can
// meet the demands of a Principle.
//
// # Ownership and goroutines
//
// A counter owns its memory; a Ranking and a hot set belong to the caller. A counter is not
// safe for concurrent use; a Sampler, a Principle and a Ranking may be used by several
// goroutines as long as none writes.
package heat
