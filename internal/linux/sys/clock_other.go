// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sys

import "time"

// KernelClock reads no clock: there is none that programs in the kernel share.
func KernelClock() (time.Duration, bool) { return 0, false }
