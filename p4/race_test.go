// SPDX-License-Identifier: Apache-2.0

//go:build race

package p4

// underRace reports whether the race detector is enabled. It slows the interpreter, which runs one
// frame at a time, down by a factor of eight, and fewer frames test as much.
const underRace = true
