// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package proc

import "os/exec"

// DieWithParent does nothing: parent-death signals exist on Linux only.
func DieWithParent(*exec.Cmd) {}

func onOwnThread(fn func()) { fn() }
