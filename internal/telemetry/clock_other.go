// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package telemetry

import "time"

// kernelClock reads no clock.
func kernelClock() (time.Duration, bool) { return 0, false }
