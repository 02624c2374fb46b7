// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Lock locks path exclusively among all callers of Lock with the suffix: while another one holds
// it, the error wraps [ErrLocked]. It locks a file with path's name and the suffix, because
// [Replace] replaces path itself. Unlock removes that file. If another user has created
// a link or a pipe of that name, it stays, and the error wraps [ErrNotRegular]. The lock ends with
// its process; a stopped process keeps it.
func Lock(path, suffix string) (unlock func() error, err error) {
	path = Resolve(path)
	name := path + suffix
	for {
		f, err := openLock(name)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%s: %w%s", path, ErrLocked, holder(f))
		}
		if err == nil {
			err = isAt(f, name)
		}
		if err == nil {
			writeHolder(f)
			return func() error { return errors.Join(os.Remove(name), f.Close()) }, nil
		}
		err = errors.Join(err, f.Close())
		if !errors.Is(err, errRemoved) {
			return nil, err
		}
	}
}

// openLock opens or creates a lock's file.
func openLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	info, unknown := os.Lstat(name)
	if unknown != nil || info.Mode().IsRegular() {
		return f, err
	}
	if err == nil {
		f.Close()
	}
	what := info.Mode().Type().String()
	if info.Mode()&fs.ModeSymlink != 0 {
		what = "a symbolic link"
	}
	return nil, &fs.PathError{Op: "lock", Path: name, Err: fmt.Errorf("%w (%s): remove it", ErrNotRegular, what)}
}

// errRemoved means that the last holder of a lock has removed the file since it was opened.
var errRemoved = errors.New("the file was renamed or removed")

// isAt returns nil if a name still refers to the file, and errRemoved if not.
func isAt(f *os.File, name string) error {
	own, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(own, now) {
		return errRemoved
	}
	return err
}

// writeHolder writes the holder to a lock's file, for messages. The lock is valid without, for
// example if the disk is full.
func writeHolder(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
}

// holder reads the text of writeHolder; "" if there is none yet.
func holder(f *os.File) string {
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return ""
	}
	return fmt.Sprintf(" (its id: %d)", pid)
}
