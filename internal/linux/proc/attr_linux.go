// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// DieWithParent makes the kernel kill cmd's process when the thread that started it ends. Start cmd
// from a [Thread].
func DieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// endRest waits until a child has ended, then terminates the rest of its process group. It does not
// reap the child: until then its process id cannot become another group's.
func endRest(p *os.Process) {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			terminate(p)
		}
		return
	}
}

// onOwnThread calls fn on a thread that ends when fn returns.
func onOwnThread(fn func()) {
	_ = sys.OwnThread(func() error { fn(); return nil })
}
