// SPDX-License-Identifier: Apache-2.0

//go:build linux && race

package bpf

// The race detector makes the model and the generator ten times slower.
const (
	defaultFrames     = 100_000
	defaultDeliveries = 100_000
)
