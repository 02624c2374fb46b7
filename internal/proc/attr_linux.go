// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os/exec"
	"syscall"

	"github.com/libra-ina/libra/internal/sys"
)

// DieWithParent makes the kernel kill cmd's process when the thread that starts
// it ends. Start cmd from a [Thread].
func DieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// onOwnThread calls fn on a thread that ends when fn returns.
func onOwnThread(fn func()) {
	_ = sys.OwnThread(func() error { fn(); return nil })
}
