// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package proc

// superviseMain serves a test of parent-death signals, which only Linux has.
func superviseMain() int { return 2 }
