// SPDX-License-Identifier: Apache-2.0

// Package sched decides which switch sums which part of a job's gradients, and where each worker
// sends them (J. Fang et al., "GOAT: Gradient Scheduling with Collaborative In-Network Aggregation
// for Distributed Training").
//
// A [Network] has hosts, switches and links; its [Problem] is what a plan depends on: how many
// links lie between workers, switches and the server, the memory of the switches, and the parts. A
// [Plan] says for each part which switches hold it, and where each worker sends its gradients. Its
// cost is the paper's Equation (1): bytes times links, of pushes and of harvests.
//
// [Solve] finds a plan and a lower bound of what any plan costs. [Paper] is the paper's own
// algorithm, KRGS, whose Equation (4) does not contain the links between workers and switches.
//
// The package computes. It knows neither frames nor cluster files, and the same problem has the
// same plan on every architecture.
//
// It is not a stable interface: it changes with any release.
package sched
