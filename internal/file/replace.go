// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Disk is the part of the operating system that replaces a file. Tests and simulations use a disk
// that loses power.
type Disk interface {
	// Resolve follows symbolic links, see [Resolve].
	Resolve(path string) string
	// Create creates a file that must not exist.
	Create(path string, mode fs.FileMode) (Writer, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes the names in a folder durable.
	SyncDir(path string) error
	// Mode returns the permissions of a file, fs.ErrNotExist if there is none, and [ErrNotRegular]
	// if it is not a regular file.
	Mode(path string) (fs.FileMode, error)
}

// Writer is a new file of a [Disk].
type Writer interface {
	io.WriteCloser
	Sync() error // makes the contents durable
	Chmod(mode fs.FileMode) error
}

// newFile is the mode of new files, before the process's umask.
const newFile = 0o644

// Replace writes a file so that, whenever the process or the machine stops, path is either the
// complete old file or the complete new one. The file keeps its permissions; a new one has 0644
// minus the umask. A symbolic link stays, and its target is replaced. Anything but a regular file,
// such as a device, is not replaced; the error wraps [ErrNotRegular].
//
// Until it is complete, the new file has path's name with the suffix. That file must not exist:
// with a constant suffix, two processes cannot write one file at a time (the error wraps
// fs.ErrExist), and the file of a killed process has to be removed, see [Prepare].
func Replace(path, suffix string, write func(io.Writer) error) error {
	return ReplaceOn(OS{}, path, suffix, write)
}

// ReplaceOn is [Replace] on a disk.
func ReplaceOn(d Disk, path, suffix string, write func(io.Writer) error) (err error) {
	path = d.Resolve(path)
	mode, err := d.Mode(path)
	if exists := err == nil; !exists && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if !exists {
		mode = newFile
	}
	temporary := path + suffix
	f, err := d.Create(temporary, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: does another process write %s? If not, remove the file", err, path)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Remove(temporary))
		}
	}()
	// The contents must reach the disk before the name does.
	if err := errors.Join(write(f), keepMode(d, f, path), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.Rename(temporary, path); err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(path))
}

// keepMode gives a new file the permissions of the replaced one, from which Create has removed the
// umask.
func keepMode(d Disk, f Writer, path string) error {
	mode, err := d.Mode(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Chmod(mode)
}

// Prepare removes path's temporary file of a killed process, and fails if [Replace] cannot write
// there. Call it only if no other process writes the file.
func Prepare(path, suffix string) error {
	return PrepareOn(OS{}, path, suffix)
}

// trial is the number of bytes that Prepare writes: a full disk still accepts empty files.
const trial = 4096

// PrepareOn is [Prepare] on a disk.
func PrepareOn(d Disk, path, suffix string) error {
	path = d.Resolve(path)
	temporary := path + suffix
	if err := d.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what a killed process left: %w", err)
	}
	if _, err := d.Mode(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(temporary, newFile)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, trial))
	return errors.Join(err, f.Sync(), f.Close(), d.Remove(temporary))
}

// Resolve follows symbolic links, so that the file is replaced and not the link, even if the file
// does not exist yet.
func Resolve(path string) string {
	for range maxLinks {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		to, err := os.Readlink(path)
		if err != nil {
			return path // not a link: the file is missing
		}
		if !filepath.IsAbs(to) {
			way, _ := filepath.Split(path)
			to = way + to // not joined, which would remove a link together with .. after it
		}
		way, name := filepath.Split(to)
		if folder, err := filepath.EvalSymlinks(way); err == nil {
			to = filepath.Join(folder, name)
		}
		path = to
	}
	return path
}

// maxLinks is the number of links that are followed, as in Linux.
const maxLinks = 40

// OS is the disk of the operating system.
type OS struct{}

// Resolve implements [Disk].
func (OS) Resolve(path string) string { return Resolve(path) }

// Create implements [Disk].
func (OS) Create(path string, mode fs.FileMode) (Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err // not a nil *os.File in an interface
	}
	return f, nil
}

// Rename implements [Disk].
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements [Disk].
func (OS) Remove(path string) error { return os.Remove(path) }

// Mode implements [Disk].
func (OS) Mode(path string) (fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() { // root can rename a file over /dev/null
		return 0, &fs.PathError{Op: "replace", Path: path, Err: fmt.Errorf("%w (%v)", ErrNotRegular, info.Mode().Type())}
	}
	return info.Mode().Perm(), nil
}

// SyncDir implements [Disk].
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
