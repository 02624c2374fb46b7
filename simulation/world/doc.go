// SPDX-License-Identifier: Apache-2.0

// Package world is what simulated lives stand on: virtual time, a schedule that a seed decides, a
// network that loses, repeats, delays, damages and blocks frames, links, control connections, and a
// disk that loses power. It knows the frames of package wire and the contract of package link, and
// nothing else of Libra.
//
// A life makes a [World], hosts and links in it, and implements [Life], which is told of each turn
// and each frame. Each [Link] has a [Watcher], which is told of what its process sends and gets. A
// life whose processes talk over control connections or write to a disk makes [Connections] and a
// [Disk].
//
// # Goroutines
//
// A life runs in a bubble of testing/synctest. Each goroutine that calls a link is an [Actor]: it
// parks at its next call of the link, and the schedule wakes one at a time. All state of a world
// belongs to the goroutine that the schedule has woken, or to the schedule between two turns.
// Goroutines that are no actors, such as those of gRPC, hold [World.Mu] for what they share.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package world
