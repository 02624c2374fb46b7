// SPDX-License-Identifier: Apache-2.0

// Package ps is the embedded parameter server: the store that holds a job's
// weights and applies its optimiser. It knows nothing of sockets; transport
// feeds it frames.
//
// A parameter lives in a row of Dim floats that is named by a uint64 key. Within
// a step the store only sums: gradients are converted to fixed point and added to one
// int64 a parameter, and so are the sums that are harvested from an aggregator. [Store.Commit] ends the step: it
// applies the optimiser once to every row that was touched, with its sum
// rounded once to float32. Integer addition is associative and rows do not
// depend on each other, so the weights after a step depend neither on the order
// of arrival nor on which rows an aggregator summed. A store without an optimiser ([None]) forgets
// the rows with the step: it is there for the sums, which [Store.AppendSums] gives.
//
// # Units
//
// A sum counts units of 2^Config.Exp. Gradients and weights are float32.
//
// # Errors
//
// A call that refuses a number adds nothing of its batch. [Store.Accumulate] returns a
// [wire.Refusal] that a server can send; the other calls return errors that wrap
// [ErrOverflow] or [ErrFull] or name the gradient at fault. Reading a checkpoint returns
// [ErrNotCheckpoint], [ErrVersion], [ErrCorrupt] or [ErrMismatch].
//
// # Ownership and goroutines
//
// A [Store] belongs to one goroutine. It keeps no slice of keys or gradients. A [Snapshot] may be
// saved by another goroutine meanwhile; it asks the owner for its turns.
package ps
