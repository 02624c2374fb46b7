// SPDX-License-Identifier: Apache-2.0

//go:build race

package p4

// underRace is whether the race detector watches the tests. The interpreter, which it slows
// down some eight times, runs one frame at a time: fewer frames show it as much.
const underRace = true
