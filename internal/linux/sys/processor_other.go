// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sys

import "runtime"

// yield leaves the processor to others of this process.
func yield() { runtime.Gosched() }

// BatchProcess does nothing except on Linux.
func BatchProcess() error { return nil }
