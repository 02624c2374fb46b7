// SPDX-License-Identifier: Apache-2.0

// Package simulation runs lives of whole clusters in one process: the product's workers, server and
// aggregator, in virtual time and on a network that loses, repeats, delays, damages and blocks
// frames, in an order determined by one seed.
//
// [Run] runs one life of workers and checks after every step that no gradient is lost or doubled
// and that every answer is correct. [RunCluster] runs the life of a cluster's processes, which are
// killed and restarted, and checks the weights that they have trained. [RunReducers] runs a life of
// workers that add small vectors, [RunRings] one of workers that add long ones, and they check
// every sum. All stand on package world. docs/simulation.md has the design.
//
// # Goroutines
//
// A life runs in a bubble of testing/synctest. Each goroutine that calls a link, and each caller of
// an endpoint, is an actor: it parks at its next call of the link or between two calls of the
// endpoint, and the scheduler wakes one at a time. All state of a life belongs to the goroutine
// that the scheduler has woken.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package simulation
