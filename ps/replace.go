package ps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// disk is what replacing a file needs of the operating system. Tests put one in
// its place that loses power.
type disk interface {
	// create makes a file that must not exist.
	create(path string, mode fs.FileMode) (diskFile, error)
	rename(from, to string) error
	remove(path string) error
	// syncDir makes the names in a folder durable.
	syncDir(path string) error
	// mode returns the permissions of a file, and fs.ErrNotExist if there is
	// none.
	mode(path string) (fs.FileMode, error)
}

type diskFile interface {
	io.WriteCloser
	Sync() error // makes the contents durable
	Chmod(mode fs.FileMode) error
}

// temporary is what the name of a file that is being written ends with.
const temporary = ".tmp"

// newFile is the mode of files that did not exist, less the process's umask.
const newFile = 0o644

// replace writes a file so that, whenever the process or the machine stops, path
// is either the old or the new one, whole. The file keeps its permissions, and a
// symbolic link goes on pointing to it.
func replace(d disk, path string, write func(io.Writer) error) (err error) {
	mode, err := d.mode(path)
	if exists := err == nil; !exists && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if !exists {
		mode = newFile
	}
	f, err := d.create(path+temporary, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: does another server write this checkpoint? If not, remove the file", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove(path+temporary))
		}
	}()
	// The contents must reach the disk before the name does.
	if err := errors.Join(write(f), keepMode(d, f, path), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.rename(path+temporary, path); err != nil {
		return err
	}
	return d.syncDir(filepath.Dir(path))
}

// keepMode gives a new file the permissions of the one that it replaces, which
// the umask took part of.
func keepMode(d disk, f diskFile, path string) error {
	mode, err := d.mode(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Chmod(mode)
}

// PrepareCheckpoint removes what a process that was killed while it wrote a
// checkpoint has left beside it, and fails if no new one can be written there.
// Call it before the first checkpoint of a process, and only if no other process
// writes this checkpoint.
func PrepareCheckpoint(path string) error {
	path = resolve(path) + temporary
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ps: removing what a killed process left of a checkpoint: %w", err)
	}
	f, err := osDisk{}.create(path, newFile)
	if err != nil {
		return fmt.Errorf("ps: a checkpoint cannot be written: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(path))
}

// resolve follows symbolic links, so that the file is replaced and not the link,
// also where the file is yet to be made.
func resolve(path string) string {
	for range maxLinks {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return real
		}
		to, err := os.Readlink(path)
		if err != nil {
			return path // no link: the file is missing
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return path
}

// maxLinks is how many links in a row are followed, as in Linux.
const maxLinks = 40

// osDisk is the disk of the operating system.
type osDisk struct{}

func (osDisk) create(path string, mode fs.FileMode) (diskFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err // not a nil *os.File in an interface
	}
	return f, nil
}

func (osDisk) rename(from, to string) error { return os.Rename(from, to) }
func (osDisk) remove(path string) error     { return os.Remove(path) }

func (osDisk) mode(path string) (fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), nil
}

func (osDisk) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
