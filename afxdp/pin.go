// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// PinThread locks the calling goroutine to its thread and, unless cpu is negative, the thread to
// that CPU. unpin reverts both and must be called from the same goroutine; if it fails, the thread
// ends with the goroutine. The error is an ErrConfig if the process may not use the CPU.
//
// A thread on the CPU that handles the queue's interrupts saves cache traffic in copy mode; a
// thread on another CPU of the same CPU socket gives more throughput in zero-copy mode.
func PinThread(cpu int) (unpin func() error, err error) {
	unpin, err = sys.PinThread(cpu)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: CPU %d is not among those that the process may use: %w", ErrConfig, cpu, err)
	}
	return unpin, err
}
