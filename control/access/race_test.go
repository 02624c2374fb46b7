// SPDX-License-Identifier: Apache-2.0

//go:build race

package access

import "runtime"

// Under the race detector, two processors that run timers of one bubble at once corrupt the
// detector's call stack and crash it (go.dev/issue/78156, open in Go 1.26). One processor finds the
// same races: the detector checks the order of accesses, not whether they coincide.
func init() { runtime.GOMAXPROCS(1) }
