// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadAttr reads /sys/class/net/IFACE/NAME of the calling thread's network
// namespace. Linux 5.2; CAP_SYS_ADMIN.
func ReadAttr(iface, name string) (string, error) {
	f, err := OpenAttr(iface, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return strings.TrimSpace(string(text)), err
}

// WriteAttr writes /sys/class/net/IFACE/NAME, like ReadAttr.
func WriteAttr(iface, name, value string) error {
	f, err := OpenAttr(iface, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// OpenAttr opens /sys/class/net/IFACE/NAME, a file or a folder. /sys shows the network namespace in
// which it was mounted, not the current one. The new mount API gives a mount that is not attached
// and ends with its descriptor, so no mount namespace is needed.
func OpenAttr(iface, name string, flags int) (*os.File, error) {
	if !filepath.IsLocal(iface) || filepath.Base(iface) != iface || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("attribute %q of interface %q: not a name in sysfs", name, iface)
	}
	root, err := mountSysfs()
	if err != nil {
		return nil, fmt.Errorf("sysfs of this network namespace: %w", err)
	}
	defer unix.Close(root)
	path := "class/net/" + iface + "/" + name
	fd, err := unix.Openat(root, path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "sysfs:" + path, Err: err}
	}
	return os.NewFile(uintptr(fd), "sysfs:"+path), nil
}

func mountSysfs() (int, error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("fsmount", err)
	}
	return root, nil
}
