// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/libra-ina/libra/internal/atomicfile"
	"github.com/libra-ina/libra/internal/regular"
)

// Lock takes path for its holder alone, among all that call Lock with the suffix: the
// error wraps [ErrLocked] while another one has it. The lock is that of a file with
// path's name and the suffix, because [atomicfile.Replace] puts another file in the
// place of path's. Unlock removes that file. Another
// user may have put a link or a pipe in its place: that stays, and the error wraps [regular.ErrNot]. A process that ends has no lock any more; one
// that is stopped keeps it.
func Lock(path, suffix string) (unlock func() error, err error) {
	path = atomicfile.Resolve(path)
	name := path + suffix
	for {
		f, err := open(name)
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

// open opens a lock's file, or makes it.
func open(name string) (*os.File, error) {
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
	return nil, &fs.PathError{Op: "lock", Path: name, Err: fmt.Errorf("%w (%s): remove it", regular.ErrNot, what)}
}

// errRemoved means that the last holder of a lock has removed its file since it was
// opened.
var errRemoved = errors.New("the file has another name, or none")

// isAt returns nil if a file still has a name, and errRemoved if not.
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

// writeHolder notes in a lock's file whose it is, for messages. The lock is good
// without, for example if the disk is full.
func writeHolder(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
}

// holder reads what writeHolder wrote; "" if there is nothing yet.
func holder(f *os.File) string {
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return ""
	}
	return fmt.Sprintf(" (its id: %d)", pid)
}
