// SPDX-License-Identifier: Apache-2.0

// Package ps is the embedded parameter server: a store that holds a job's weights and
// applies its optimiser. It has no sockets; transport passes frames to it.
//
// A parameter is a column of a row of Dim floats, and a uint64 key identifies the row.
// During a step the store only sums: gradients are converted to fixed point and added
// to one int64 for each parameter, as are the sums harvested from an aggregator.
// [Store.Commit] ends the step: it applies the optimiser once to every touched row, with
// its sum rounded once to float32. Integer addition is associative and rows are
// independent, so the weights after a step depend neither on the order of arrival nor
// on which rows an aggregator summed. A store without an optimiser ([None]) forgets
// the rows at the end of the step: it only provides the sums ([Store.AppendSums]).
//
// # Units
//
// A sum counts units of 2^Config.Exp. Gradients and weights are float32. Without an optimiser, what
// units do not hold is added to sums of 320 bits, so that no gradient is rounded.
//
// # Errors
//
// A call that refuses a number adds nothing of its batch. [Store.Accumulate] returns a
// [wire.Refusal] that a server can send; other calls return errors that wrap
// [ErrOverflow] or [ErrFull] or name the invalid gradient. Reading a checkpoint returns
// [ErrNotCheckpoint], [ErrVersion], [ErrCorrupt] or [ErrMismatch].
//
// # Ownership and goroutines
//
// A [Store] belongs to one goroutine. It keeps no slice of keys or gradients. Another
// goroutine may save a [Snapshot] meanwhile; it runs its accesses on the owner.
package ps
