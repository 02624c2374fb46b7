// SPDX-License-Identifier: Apache-2.0

// Package placement holds the paper's packaging of hot gradients for a switch
// whose m registers are accessed once a pass (§3.4; package packer names the
// paper): [Heat] and [Random] place parameters in registers, [Algorithm1] is
// PARAMETER_ORCHESTRATING as printed, [Orchestrator] is its fast version, and
// [Recirculations] counts the cost of a packet.
//
// The package serves comparisons. Libra itself uses package packer, whose
// lane-aligned frames never recirculate.
//
// # Units
//
// Ranks are scalar ranks, 0 the hottest. Capacities count gradients, and costs count
// the passes after a packet's first.
//
// # Errors
//
// Constructors return errors that wrap packer.ErrConfig. A rank beyond the n of
// [NewRandom] panics, as an index out of range does.
//
// # Ownership and goroutines
//
// [Packets] are views of the orchestrator's memory until its next call. The types are
// not safe for concurrent use, except Heat and Random, which are immutable.
package placement
