// SPDX-License-Identifier: Apache-2.0

// Package telemetry measures how long frames and pushes take, at a cost that allows it to stay on.
//
// A [Draw] selects frames by their number, so that both ends of a flow measure the same frames
// without a word on the wire. What an endpoint measures of them goes into a [Recorder]: into
// histograms ([Histogram]), one for each operation, part and peer, and into a [Ring] of records,
// from which the two halves of a frame's way can be joined.
//
// The goroutine of an endpoint writes, without locks and allocations. Any other goroutine may read
// at the same time, and never waits for the writer nor makes it wait.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package telemetry
