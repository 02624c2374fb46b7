// SPDX-License-Identifier: Apache-2.0

// Package digits trains multilayer perceptrons on images, such as MNIST's digits: a workload of
// dense gradients. [Open] reads images and labels in the IDX format of
// http://yann.lecun.com/exdb/mnist; a [Network] is fully connected layers with rectifiers between
// them, and the cross entropy of the softmax of the last as its loss.
//
// Images are float32[n, pixels] by rows, from 0 to 1, and labels uint8[n]. All weights of a Network
// are one float32 vector, and so are its gradients, so that what exchanges gradients sees a vector.
//
// It is part of the libra command, not a stable interface: it changes with any release.
//
// The same seed and the same batches give the same weights on the same kind of machine. A Network
// is safe for concurrent use by several [Pass]es while its weights do not change.
package digits
