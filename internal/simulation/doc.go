// SPDX-License-Identifier: Apache-2.0

// Package simulation lives the lives of whole clusters in one process: the product's
// own workers, server and aggregator, on virtual time and a network that loses,
// repeats, delays, damages and cuts off, in an order that one seed decides.
//
// [Run] lives one life of workers and checks after every step that no gradient is lost or
// doubled and that every answer is true. [RunCluster] lives the life of a cluster's
// processes, which are killed and started again, and checks what they have trained.
// docs/simulation.md has the design.
//
// # Goroutines
//
// A life runs in a bubble of testing/synctest. Each goroutine that calls a link, and
// each caller of an endpoint, is an actor: it parks at its next call of the link or
// between two calls of the endpoint, and the scheduler wakes one at a time. All state
// of a life belongs to whichever goroutine the scheduler has woken.
package simulation
