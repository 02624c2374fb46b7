package proc

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// DieWithParent makes the kernel kill cmd's process when the thread that starts
// it ends. Start cmd from a [Thread].
func DieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

func onMainThread() bool { return unix.Gettid() == unix.Getpid() }
