// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package proc

import (
	"os"
	"os/exec"
)

// DieWithParent does nothing: only Linux has parent-death signals.
func DieWithParent(*exec.Cmd) {}

// endRest does nothing: a process cannot be waited for without reaping it.
func endRest(*os.Process) {}

func onOwnThread(fn func()) { fn() }
