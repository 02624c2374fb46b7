// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package bpf

const (
	defaultFrames     = 1_000_000
	defaultDeliveries = 400_000
)
