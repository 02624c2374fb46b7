// SPDX-License-Identifier: Apache-2.0

// Package chaos trains with real processes while it kills, suspends and restarts them, and disturbs
// their network, and compares the weights with those of a training that was not disturbed, bit for
// bit. It is what 'libra chaos' runs; docs/chaos.md describes the cluster, the troubles and their
// limits.
//
// A seed decides a [Life]: the training, and which trouble befalls whom, at which step, and for how
// long. [Plan] makes it, without running anything. [Run] lives one life after the other.
package chaos
