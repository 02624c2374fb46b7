// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capability is one of Linux's privileges (capabilities(7)).
type Capability uint

// Capabilities that parts of Libra require.
const (
	CapNetAdmin Capability = unix.CAP_NET_ADMIN
	CapSysAdmin Capability = unix.CAP_SYS_ADMIN
	CapPerfmon  Capability = unix.CAP_PERFMON
	CapBPF      Capability = unix.CAP_BPF
)

func (c Capability) String() string {
	return map[Capability]string{
		CapNetAdmin: "CAP_NET_ADMIN", CapSysAdmin: "CAP_SYS_ADMIN", CapPerfmon: "CAP_PERFMON", CapBPF: "CAP_BPF",
	}[c]
}

// MissingCapabilities returns those of the wanted capabilities that the calling thread lacks, in
// their order.
func MissingCapabilities(want ...Capability) (missing []string, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil, os.NewSyscallError("capget", err)
	}
	for _, c := range want {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			missing = append(missing, c.String())
		}
	}
	return missing, nil
}

// DropCapabilities permanently removes all capabilities of all threads of the process. With cgo, Go
// does not know all threads: then the error wraps [errors.ErrUnsupported], and nothing has changed.
func DropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none[0])), 0)
	if errno == syscall.ENOTSUP {
		return fmt.Errorf("drop capabilities: a program with cgo cannot: %w", errors.ErrUnsupported)
	}
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", os.NewSyscallError("capset", errno))
	}
	return nil
}
