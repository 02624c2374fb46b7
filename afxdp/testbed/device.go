//go:build linux

package testbed

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// SetThreadedNAPI moves the receive work of an interface to kernel threads of
// its own, which the scheduler can put on another core than the sender's. On a
// veth pair it roughly doubles the rate of an echo. A veth has receive work of
// its own only while an XDP program is attached to it, so attach first.
func (n *Namespace) SetThreadedNAPI(ifname string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return n.SetDeviceAttr(ifname, "threaded", value)
}

// SetDeviceAttr writes /sys/class/net/IFNAME/ATTR of the namespace, for example
// napi_defer_hard_irqs and gro_flush_timeout for busy polling. The sysfs that
// is mounted on /sys shows the namespace it was mounted from, so this makes a
// detached mount.
func (n *Namespace) SetDeviceAttr(ifname, attr, value string) error {
	if strings.ContainsAny(ifname+attr, "/") {
		return fmt.Errorf("testbed: %q or %q is not a plain name", ifname, attr)
	}
	err := n.Do(func() error {
		fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("fsopen", err)
		}
		defer unix.Close(fs)
		if err := unix.FsconfigCreate(fs); err != nil {
			return os.NewSyscallError("fsconfig", err)
		}
		mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("fsmount", err)
		}
		defer unix.Close(mnt)
		fd, err := unix.Openat(mnt, "class/net/"+ifname+"/"+attr, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("openat", err)
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(value))
		return os.NewSyscallError("write", err)
	})
	if err != nil {
		return fmt.Errorf("testbed: set %s of %s to %s: %w", attr, ifname, value, err)
	}
	return nil
}
