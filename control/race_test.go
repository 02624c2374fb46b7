// SPDX-License-Identifier: Apache-2.0

//go:build race

package control

import "runtime"

// Under the race detector, two processors that run timers of one bubble at once
// corrupt the detector's stack of calls, and it dies (go.dev/issue/78156, open
// in Go 1.26). One processor sees the same races: the detector goes by what
// orders two accesses, not by whether they coincide.
func init() { runtime.GOMAXPROCS(1) }
