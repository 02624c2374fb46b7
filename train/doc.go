// SPDX-License-Identifier: Apache-2.0

// Package train trains sparse models through a parameter server: it turns mini-batches of package
// data into gradients, and drives a [Client], its only interface to a transport.
//
// [Train] is a worker's loop, [Reference] the same training in one process without a transport.
// Both compute gradients in a fixed order of samples and features, so that with synchronous workers
// their weights are the same, bit for bit.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package train
