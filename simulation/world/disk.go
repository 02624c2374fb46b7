// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/file"
)

// Disk is the disk of one machine. Writes survive the end of a process, but a loss of power only if
// they were synced: a file's contents by its Sync, its name by that of its folder.
type Disk struct {
	w      *World
	watch  DiskWatcher
	folder string // the only one
	rng    *rand.Rand
	names  map[string]*diskFile
	synced map[string]*diskFile // the names that survive a loss of power
	locks  map[string]*Process  // by the name of their file
	writes int                  // guarded by the world's Mu

	// whole are the contents that names were given by Rename, of which the last one to be durable
	// has the number durable; they are compared after a loss of power.
	whole   [][]byte
	durable int
}

// DiskWatcher is told of what processes do to a disk.
type DiskWatcher interface {
	// Renamed is called after a file got its final name, in place of one of mode before, if that is
	// not 0. It returns the mode that the file has from now on.
	Renamed(p *Process, to string, data []byte, before, mode fs.FileMode) fs.FileMode
	// Opened is called before a process reads a file. whole means that its contents are those of a
	// rename, and not older than the newest durable ones.
	Opened(path string, whole bool)
}

// NewDisk makes a disk with one folder.
func (w *World) NewDisk(folder string, watch DiskWatcher) *Disk {
	return &Disk{
		w: w, watch: watch, folder: folder, rng: w.Named("disk"),
		names: map[string]*diskFile{}, synced: map[string]*diskFile{}, locks: map[string]*Process{}, durable: -1,
	}
}

// Names returns the names of all files.
func (d *Disk) Names() []string { return slices.Sorted(maps.Keys(d.names)) }

// Data returns the contents of a file.
func (d *Disk) Data(name string) (data []byte, ok bool) {
	f := d.names[name]
	if f == nil {
		return nil, false
	}
	return f.data, true
}

// Durable reports whether a file survives a loss of power, with its name and all its contents.
func (d *Disk) Durable(name string) bool {
	f := d.names[name]
	return f != nil && d.synced[name] == f && bytes.Equal(f.synced, f.data)
}

// Writes returns how many writes and syncs of files have begun. The world's lock is held.
func (d *Disk) Writes() int { return d.writes }

type diskFile struct {
	data   []byte
	synced []byte // that survive a loss of power
	mode   fs.FileMode
}

// LosePower keeps everything that was synced, and some of the rest.
func (d *Disk) LosePower() {
	// A name that was not synced may or may not be on the disk, but a folder is written in order.
	kept := d.synced
	if d.rng.IntN(2) == 0 {
		kept = d.names
	}
	d.names, d.synced = map[string]*diskFile{}, map[string]*diskFile{}
	for name, f := range kept {
		f.data = torn(d.rng, f)
		f.synced = f.data
		d.names[name], d.synced[name] = f, f
	}
	clear(d.locks)
}

// torn returns a file after a loss of power: unsynced blocks may be zero, and the end may be
// missing.
func torn(rng *rand.Rand, f *diskFile) []byte {
	const block = 512
	if bytes.Equal(f.data, f.synced) {
		return f.data
	}
	left := append([]byte(nil), f.data[:rng.IntN(len(f.data)+1)]...)
	for at := 0; at < len(left); at += block {
		if rng.IntN(3) == 0 {
			clear(left[at:min(at+block, len(left))])
		}
	}
	return left
}

// DiskOf is a process's access to the disk of its machine.
type DiskOf struct {
	*Disk
	of *Process
}

// For returns a process's access to the disk.
func (d *Disk) For(p *Process) DiskOf { return DiskOf{d, p} }

// alive fails if the process has ended.
func (d DiskOf) alive() error {
	if d.of.Dead() {
		return ErrGone
	}
	return nil
}

// Resolve returns the path itself: the disk has no links.
func (d DiskOf) Resolve(path string) string { return path }

// Create makes a file, which must not exist.
func (d DiskOf) Create(path string, mode fs.FileMode) (file.Writer, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	if d.names[path] != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrExist}
	}
	f := &diskFile{mode: mode}
	d.names[path] = f
	return &handle{d, f}, nil
}

// Rename gives a file its final name.
func (d DiskOf) Rename(from, to string) error {
	f := d.names[from]
	if err := d.alive(); err != nil || f == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	var before fs.FileMode
	if replaced := d.names[to]; replaced != nil {
		before = replaced.mode
	}
	d.names[to] = f
	delete(d.names, from)
	d.whole = append(d.whole, bytes.Clone(f.data))
	f.mode = d.watch.Renamed(d.of, to, f.data, before, f.mode)
	return nil
}

// Remove removes a name.
func (d DiskOf) Remove(path string) error {
	if err := d.alive(); err != nil {
		return err
	}
	if d.names[path] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	delete(d.names, path)
	return nil
}

// SyncDir makes the current names durable.
func (d DiskOf) SyncDir(string) error {
	if err := d.alive(); err != nil {
		return err
	}
	d.synced = map[string]*diskFile{}
	for name, f := range d.names {
		d.synced[name] = f
	}
	d.durable = len(d.whole) - 1
	return nil
}

// Mode returns a file's permissions.
func (d DiskOf) Mode(path string) (fs.FileMode, error) {
	info, err := d.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), nil
}

// Stat describes a file or the folder.
func (d DiskOf) Stat(name string) (fs.FileInfo, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	if name == d.folder {
		return fileInfo{nil, name}, nil
	}
	f := d.names[name]
	if f == nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return fileInfo{f, name}, nil
}

// Open reads a file.
func (d DiskOf) Open(path string) (io.ReadCloser, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	f := d.names[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	d.watch.Opened(path, d.isWhole(f.data))
	return io.NopCloser(bytes.NewReader(f.data)), nil
}

// Lock takes a lock, which ends with its process.
func (d DiskOf) Lock(path, suffix string) (unlock func() error, err error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	if other := d.locks[path+suffix]; other != nil && !other.Dead() {
		return nil, file.ErrLocked
	}
	d.locks[path+suffix] = d.of
	return func() error {
		if d.locks[path+suffix] == d.of {
			delete(d.locks, path+suffix)
		}
		return nil
	}, nil
}

// dawdle lets time pass during a process's access.
func (d DiskOf) dawdle() {
	d.w.Mu.Lock()
	d.writes++
	d.w.Mu.Unlock()
	a := d.w.NewActor(d.of.name+" at its disk", d.of.host)
	a.Sleep("writes", 100*time.Microsecond)
	a.Leave()
}

// isWhole reports whether contents are those of a rename, and not older than the newest durable.
func (d *Disk) isWhole(data []byte) bool {
	for i := len(d.whole) - 1; i >= max(0, d.durable); i-- {
		if bytes.Equal(d.whole[i], data) {
			return true
		}
	}
	return false
}

// handle is an open new file.
type handle struct {
	d DiskOf
	f *diskFile
}

func (h *handle) Write(b []byte) (int, error) {
	if err := h.d.alive(); err != nil {
		return 0, err
	}
	h.d.dawdle()
	if err := h.d.alive(); err != nil {
		return 0, err
	}
	h.f.data = append(h.f.data, b...)
	return len(b), nil
}

func (h *handle) Sync() error {
	h.d.dawdle()
	if err := h.d.alive(); err != nil {
		return err
	}
	h.f.synced = bytes.Clone(h.f.data)
	return nil
}

func (h *handle) Chmod(mode fs.FileMode) error {
	h.f.mode = mode
	return h.d.alive()
}

func (h *handle) Close() error { return h.d.alive() }

// fileInfo is a file with its name; without a file it is the folder.
type fileInfo struct {
	f    *diskFile
	name string
}

func (i fileInfo) Name() string { return filepath.Base(i.name) }
func (i fileInfo) Size() int64 {
	if i.f == nil {
		return 0
	}
	return int64(len(i.f.data))
}
func (i fileInfo) Mode() fs.FileMode {
	if i.f == nil {
		return fs.ModeDir | 0o755
	}
	return i.f.mode
}
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return i.f == nil }
func (i fileInfo) Sys() any           { return nil }
