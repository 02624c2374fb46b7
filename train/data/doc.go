// SPDX-License-Identifier: Apache-2.0

// Package data holds what a model is trained on and judged by: samples from click logs, read from
// files or synthesised, the mini-batches made of them, the tasks with their losses, and the
// metrics.
//
// A [Source] yields the samples of one worker's [Shard] in a fixed order. [Load] holds them in
// memory as a [Dataset], from which [Batch.Build] makes mini-batches. A [Task] says what the labels
// mean.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package data
