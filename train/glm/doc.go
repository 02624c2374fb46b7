// SPDX-License-Identifier: Apache-2.0

// Package glm trains generalised linear models with the model divided among workers (Algorithm 1 of
// the P4SGD paper): worker m holds the columns of the data that packer.Split gives to m, their
// weights, and all labels. For each micro-batch of rows, workers add their partial activations in
// the network, and each then computes the gradients of its own columns. The forward pass of the
// next micro-batches runs while the sums of earlier ones are on their way.
//
// # Integers
//
// All that depends on the network, or on how columns and rows are divided, is integer arithmetic
// without overflow or saturation. So the weights do not depend on the number of workers, the size
// of micro-batches, or what the network loses: they are the same bits ([Model.SHA256]).
//
//   - A feature x is q = x·2^p / the largest magnitude of its column, rounded to even and cut to
//     ±(2^p-1), with p of 1 to 8 bits.
//   - A weight w is an int64 in units of 2^-40, of a magnitude below 2^10. In the forward pass it
//     is v = (w + 2^(15+p)) >> (16+p).
//   - An activation is the sum of q·v in units of 2^-24. That of one of M workers is within
//     ±(2^31-1)/M, so that the sum of all fits 32 bits.
//   - The scale of a row is γ·df/B·2^(40-p), rounded to even, of a magnitude below 2^44: γ is the
//     learning rate, B the size of mini-batches, and df the derivative of the row's loss by its
//     activation, in float64 and by package portable. After each mini-batch of at most 1,024 rows,
//     the sum of scale·q is subtracted from each weight.
//
// A value that leaves its range ends the training with a [*RangeError], which names the row or the
// column. Nothing is cut in silence.
//
// There is no intercept. Data that need one have a column of ones.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package glm
