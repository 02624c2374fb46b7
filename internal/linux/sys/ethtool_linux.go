// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ethtool makes an ethtool call (SIOCETHTOOL) for an interface of the calling thread's network
// namespace. command points to a structure of <linux/ethtool.h> that names the call; the kernel
// reads it or fills it in. The error is the kernel's.
func Ethtool(ifname string, command unsafe.Pointer) error {
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte // struct ifreq is 40 bytes
	}
	if len(ifname) >= len(ifr.name) {
		return unix.EINVAL
	}
	copy(ifr.name[:], ifname)
	ifr.data = command
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}
