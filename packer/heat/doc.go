// SPDX-License-Identifier: Apache-2.0

// Package heat finds out which parameters are hot.
//
//   - [Sampler] chooses the training rows to look at.
//   - [Exact] and [SpaceSaving] count how often parameters are updated in them; the
//     result is a [Ranking].
//   - [Principle] makes the hot set of a ranking (Principle 1 of the paper, §3.3):
//     a [packer.HotSet].
//
// # Units
//
// A count is in updates, a share is a part of all updates, from 0 to 1, and memory is in
// bytes. A row has a key and as many gradients as its dimension, each of which takes a slot.
//
// # Errors
//
// Errors of a configuration wrap [packer.ErrConfig]. [ErrShare] means that no hot set can
// be what a Principle demands.
//
// # Ownership and goroutines
//
// A counter's memory is its own, and a Ranking and a hot set are their caller's. A counter
// belongs to one goroutine at a time; a Sampler, a Principle and a Ranking may be used by
// several, as long as none writes.
package heat
