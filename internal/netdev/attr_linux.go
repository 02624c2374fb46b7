// Package netdev reads and writes the attributes of network interfaces that
// sysfs has, in the calling thread's network namespace.
package netdev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Get reads /sys/class/net/IFACE/NAME. Linux 5.2.
func Get(iface, name string) (value string, err error) {
	err = open(iface, name, unix.O_RDONLY, func(f *os.File) error {
		text, err := io.ReadAll(f)
		value = strings.TrimSpace(string(text))
		return err
	})
	return value, err
}

// Set writes /sys/class/net/IFACE/NAME.
func Set(iface, name, value string) error {
	return open(iface, name, unix.O_WRONLY, func(f *os.File) error {
		_, err := f.WriteString(value)
		return err
	})
}

// open opens an attribute for do. /sys shows the network namespace that it was
// mounted from, not the current one. The new mount API gives a mount that is
// attached nowhere and goes with its descriptor, so no mount namespace has to be
// made.
func open(iface, name string, flags int, do func(*os.File) error) error {
	root, err := mount()
	if err != nil {
		return fmt.Errorf("sysfs of this network namespace: %w", err)
	}
	defer unix.Close(root)
	path := "class/net/" + iface + "/" + name
	fd, err := unix.Openat(root, path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "sysfs:" + path, Err: err}
	}
	f := os.NewFile(uintptr(fd), "sysfs:"+path)
	return errors.Join(do(f), f.Close())
}

func mount() (int, error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fsmount", err)
	}
	return root, nil
}
